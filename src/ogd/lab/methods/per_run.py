"""An option that is one number, or one number per run of the stack: that is how a setting is swept in lockstep."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.lab.catalogue import Option
from ogd.lab.models.stack import Stack


def per_run(option: Option[float], given: float | Sequence[float]) -> tuple[float, ...]:
    """Return the values given for an option, each checked."""
    values = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for value in values:
        option.check(value)
    return tuple(map(float, values))


def of_stack(option: Option[float], values: tuple[float, ...], model: Stack) -> Tensor:
    """Return the values for the runs of a stack, (1,) or (R,)."""
    if len(values) not in (1, len(model.runs)):
        raise ValueError(f"{option.name}: {len(values)} values do not fit {len(model.runs)} runs")
    return torch.tensor(values, dtype=torch.float64).to(model.dtype)
