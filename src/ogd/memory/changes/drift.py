"""The drift of remembered outputs, to first order.

The drift of a remembered output since the end of its task is g · (w − w*). Only the weights w* at the end of the last
task are stored. When another task ends, the drift until then is stored for each row.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ogd.memory.blocks.block import working_dtype
from ogd.memory.projection.store import Store
from ogd.memory.ranks.collective import sum_over_ranks


class Drift:
    """The first-order change of every remembered output, from a copy of the weights and a number per row."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.rows = torch.zeros(0, dtype=torch.float64)

    def now(self, store: Store, params: Mapping[str, Tensor]) -> Tensor:
        """Return the change of each output since its task was remembered, (n,). Collective if sharded."""
        change = torch.zeros(len(store), dtype=torch.float64)
        for piece in store.pieces:
            u = [self._moved(name, params.get(name), shape=store.shapes[name]) for name in piece.names]
            block = piece.block.to(u[0].device, u[0].dtype)
            change[piece.start : piece.stop] += block.overlap(u).double().cpu()
        if store.sharded:
            (change,) = sum_over_ranks(change)
        change[: len(self.rows)] += self.rows
        return change

    def add_task(self, before: Store, after: Store, params: Mapping[str, Tensor], rows: int) -> None:
        """Store the drift before another task of `rows` rows; reset it if other rows were evicted."""
        evicted = len(after) != len(before) + rows
        change = self.rows[:0] if evicted else self.now(before, params)
        self.reset(after, params)
        self.rows[: len(change)] = change

    def reset(self, store: Store, params: Mapping[str, Tensor]) -> None:
        """Set the drift to zero at the present weights."""
        self.rows = torch.zeros(len(store), dtype=torch.float64)
        self.weights = {name: p.detach().clone() for name, p in params.items() if name in store.shapes}

    def _moved(self, name: str, p: Tensor | None, shape: Sequence[int]) -> Tensor:
        w = self.weights.get(name)
        if p is None or w is None or p.shape != w.shape:
            return torch.zeros(*shape)
        dtype = working_dtype(p.dtype)
        return p.detach().to(dtype) - w.to(p.device, dtype)


def rms_by_task(change: Tensor, tasks: Sequence[int]) -> tuple[float, ...]:
    """Return the root mean square of each task's rows."""
    return tuple(float(part.square().mean().sqrt()) for part in change.split(list(tasks)))
