"""The contract between the one loop and the methods: hooks that do nothing by default."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ogd.checks import ArgumentError
from ogd.lab.benchmarks import Task
from ogd.lab.catalogue import Option
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import Optimizer, Quadratic


class Network(Protocol):
    """Computes a step: the stack itself, or a constraint in its place."""

    def passing(self, x: Tensor) -> tuple[Any, Tensor]: ...

    def backward(self, tape: Any, delta: Tensor) -> Gradient: ...


class Constraint:
    """Acts around the steps of one task. This one changes nothing; OGD's projections override it.

    `network` computes the steps. The loop calls `foresee` with the inputs (R, steps · B, …) of the coming steps,
    `after_step` after each, `settle` at the end of every epoch, and `settled` to evaluate the weights in between.
    """

    def __init__(self, model: Stack) -> None:
        self.model = model
        self.network: Network = model

    def foresee(self, x: Tensor) -> None:
        """Prepare for the inputs of the coming steps, which `network` receives in order."""

    def after_step(self) -> None:
        """Correct the weights after a step."""

    def settle(self) -> None:
        """Bring the weights up to date."""

    def settled(self) -> Stack:
        """Return a stack with weights that are up to date, without changing this one."""
        return self.model


class Method:
    """How a method differs from SGD; a subclass overrides only its difference.

    A step of the loop is

        g = transform(∂L/∂w)               L the loss on a batch drawn from examples(tasks seen)
        w ← w − η (g + ∂penalty/∂w)        or what the optimizer makes of that gradient

    `begin` is called before the first task, `end_task` when a task has been learned. During the first task every method
    must do what SGD does: it is trained once for all. What a method keeps may depend on nothing but the weights that
    tasks ended with and on draws from (seed, run, purpose), so that an interrupted training can resume by calling
    `end_task` with each of them. What else changes from step to step must be in `state`.

    Examples:
        >>> class LastTwo(Method):
        ...     "Keep the data of one finished task, and train on both."
        ...     name = "last two"
        ...     def examples(self, seen):
        ...         return seen[-2:]
    """

    name = "method"

    def __repr__(self) -> str:
        return self.name

    def begin(self, model: Stack, seed: int) -> None:
        """Forget everything and start again with this stack; run r draws from (seed, r, purpose)."""

    def examples(self, seen: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks to draw training batches from; `seen` ends with the present one."""
        return seen[-1:]

    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        """Return the gradient to use instead of the batch's; `step` counts since training began."""
        return gradient

    def penalty(self) -> Quadratic | None:
        """Return the quadratic to add to the loss, or None."""
        return None

    def constraint(self, optimizer: Optimizer) -> Constraint:
        """Return the constraint for the coming task, whose steps `optimizer` takes."""
        return Constraint(optimizer.model)

    def end_task(self, finished: FinishedTask) -> None:
        """Store what the method needs of a finished task."""

    def state(self) -> dict[str, Tensor]:
        """Return what the steps of a task have changed, for a checkpoint; every task begins without it."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Resume within a task from what `state` returned."""


def per_run(option: Option[float], given: float | Sequence[float]) -> tuple[float, ...]:
    """Check the values of an option that takes one number, or one number per run of the stack."""
    values = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for value in values:
        option.check(value)
    return tuple(map(float, values))


def stack_values(option: Option[float], values: tuple[float, ...], model: Stack) -> Tensor:
    """Return the values of such an option as a tensor for the runs of a stack, (1,) or (R,)."""
    if len(values) not in (1, len(model.runs)):
        raise ArgumentError(option.name, f"{len(values)} values do not fit {len(model.runs)} runs")
    return torch.tensor(values, dtype=torch.float64).to(model.dtype)
