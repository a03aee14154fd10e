"""Which examples of a finished task are kept: drawn uniformly, the same for every method that keeps any."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd import seeds


def chosen(seed: int, runs: Sequence[int], task: int, total: int, n: int) -> Tensor:
    """Return the examples (R, min(n, total)) of task number `task` that each run keeps, without repetition."""
    draws = [seeds.generator(seed, r, f"memory/{task}") for r in runs]
    return torch.stack([torch.randperm(total, generator=g)[:n] for g in draws])
