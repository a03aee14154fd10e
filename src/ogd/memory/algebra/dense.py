"""Gradients of one parameter, written out: what is small anyway, or has no smaller form."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ogd.memory.algebra.gram import by_parts, squares
from ogd.memory.algebra.sparse import alike

if TYPE_CHECKING:
    from ogd.memory.algebra.blocks import Block


@dataclass(frozen=True, eq=False)
class Dense:
    """Gradients of one parameter, written out."""

    G: Tensor  # (..., n, p)

    @property
    def n(self) -> int:
        return self.G.shape[-2]

    @property
    def lead(self) -> torch.Size:
        return self.G.shape[:-2]

    @property
    def form(self) -> Hashable:
        return self.G.shape

    @property
    def nbytes(self) -> int:
        return self.G.nbytes

    @property
    def device(self) -> torch.device:
        return self.G.device

    @property
    def width(self) -> int:
        return self.G.shape[-1]

    T = grain = 1

    def gram(self, other: "Block") -> Tensor:
        return by_parts(self, other)

    def squares(self) -> Tensor:
        return squares(self)

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

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += combine(c)` in place."""
        add_to(params, self.combine(c))

    def laid_out(self) -> Self:
        return self

    def rows(self, start: int, stop: int) -> Tensor:
        return self.G[..., start:stop, :].double()

    def columns(self, start: int, stop: int) -> Tensor:
        return self.G[..., start:stop].double()

    def tensors(self) -> dict[str, Tensor]:
        return {"G": self.G}

    def split(self) -> tuple["Block", ...]:
        return (self,)

    def fits(self, other: "Block") -> bool:
        return isinstance(other, Dense) and alike(self.G, other.G)

    def joined(self, *others: "Block") -> Self:
        return replace(self, G=torch.cat([block.tensors()["G"] for block in (self, *others)], -2))

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return replace(self, G=self.G.to(device, dtype))

    def __getitem__(self, rows: slice) -> Self:
        return replace(self, G=self.G[..., rows, :])


def add_to(params: Sequence[Tensor], update: Sequence[Tensor]) -> None:
    """Do `params += update` in place, whatever the shape in which the update lies."""
    for p, u in zip(params, update, strict=True):
        p.add_(u.reshape(p.shape))
