"""Dense gradients of one parameter, for those that are small or have no smaller form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.blocks.block import Block, check_numbers


@dataclass(frozen=True, eq=False)
class Dense(Block):
    """Row i of G is stored as it is."""

    kind: ClassVar[str] = "dense"
    row_axes: ClassVar[Mapping[str, int]] = {"G": -2}

    G: Tensor  # (..., n, p)

    @property
    def lead(self) -> torch.Size:
        return self.G.shape[:-2]

    @property
    def width(self) -> int:
        return self.G.shape[-1]

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        (u,) = update
        u = u.reshape(*u.shape[: self.G.ndim - 2], -1).to(self.G.dtype)  # (..., p)
        if self.G.ndim == 2:
            return torch.mv(self.G, u)
        # one run at a time: G[r] @ u[r] beats bmm for one column on the CPU
        pairs = zip(self.G.flatten(0, -3), u.flatten(0, -2), strict=True)
        return torch.stack([G @ x for G, x in pairs]).view(*self.lead, self.n)

    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        return ((c.unsqueeze(-2) @ self.G).squeeze(-2),)

    def columns(self, start: int, stop: int) -> Tensor:
        return self.G[..., start:stop].double()

    def pad(self, old: Sequence[torch.Size], new: Sequence[torch.Size]) -> Block | None:
        """Pad with zeros at the end, because only the first axis of the parameter may grow."""
        (before,), (after,) = old, new
        if len(before) != len(after) or not before or before[1:] != after[1:] or after[0] < before[0]:
            return None
        return Dense(functional.pad(self.G, (0, after.numel() - before.numel())))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[torch.Size]) -> Self:
        (size,) = sizes
        check_numbers(tensors["G"], (len(tensors["G"]), size.numel()), "G")
        return cls(tensors["G"])

    def describe(self) -> str:
        return "dense: nothing smaller"
