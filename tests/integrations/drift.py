"""Whether training moved the weights only where remembered outputs stay: P Δw = Δw."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import ogd


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def forbidden(state: Mapping[str, Any], model: nn.Module, before: Mapping[str, Tensor]) -> float:
    """The share of Δw, since `before`, that a memory of this state would have removed: |Δw − P Δw| / |Δw|."""
    memory = ogd.GradientMemory(model)
    memory.load_state_dict(state)
    delta = {
        name: p.detach() - before[name] for name, p in model.named_parameters() if p.requires_grad and name in before
    }
    allowed = memory.project(delta)
    size = torch.cat([d.flatten() for d in delta.values()]).norm()
    assert size > 0, "nothing was trained"
    return float(torch.cat([(delta[name] - allowed[name]).flatten() for name in delta]).norm() / size)
