"""Gradients of a table of which each example reads a few rows: an embedding's. Only those rows are kept."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ogd.memory.algebra.gram import CHUNK, by_parts

if TYPE_CHECKING:
    from ogd.memory.algebra.blocks import Block

OFTEN = 4096  # pairs of rows that share an entry of the table, from which a matrix product pays


@dataclass(frozen=True, eq=False)
class Sparse:
    """Row i of G is Σ_t e(v_it) ⊗ δ_it: the table's row v_it was read at position t, δ is the gradient there.

    gram       Σ_ts [v_it = v'_js] δ_it · δ'_js
    overlap    Σ_t U[v_it] · δ_it
    combine    U[v_it] += c_i δ_it
    """

    index: Tensor  # (..., n·T), int32: v
    D: Tensor  # (..., n·T, d)
    V: int  # rows of the table
    T: int = 1

    @property
    def n(self) -> int:
        return self.index.shape[-1] // self.T

    @property
    def lead(self) -> torch.Size:
        return self.index.shape[:-1]

    @property
    def form(self) -> Hashable:
        return self.V, self.T, self.D.shape

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.D.nbytes

    @property
    def device(self) -> torch.device:
        return self.D.device

    @property
    def width(self) -> int:
        return self.V * self.D.shape[-1]

    @property
    def grain(self) -> int:
        return self.D.shape[-1]

    def gram(self, other: "Block") -> Tensor:
        if not isinstance(other, Sparse):
            return by_parts(self, other)
        if not self.lead:
            return _shared(_merged(self), _merged(other), self.n, other.n)
        runs = zip(self._runs(), other._runs(), strict=True)
        return torch.stack([one.gram(two) for one, two in runs]).view(*self.lead, self.n, other.n)

    def squares(self) -> Tensor:
        """|g_i|² of every row, (..., n)."""
        runs = self._runs() if self.lead else [self]
        totals = []
        for run in runs:
            _, i, D = _merged(run)
            totals.append(D.new_zeros(self.n).index_add_(0, i, D.square().sum(-1)))
        return torch.stack(totals).view(*self.lead, self.n)

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        U = update[0].reshape(-1, self.grain)
        s = (U[self._flat()].to(self.D.dtype).view(self.D.shape) * self.D).sum(-1)
        return torch.unflatten(s, -1, (self.n, self.T)).sum(-1)

    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        U = self.D.new_zeros(*self.lead, self.V, self.grain)
        self.add_combination([U], c)
        return (U,)

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += combine(c)` in place."""
        U = (c.repeat_interleave(self.T, -1).unsqueeze(-1) * self.D).flatten(0, -2)
        table = params[0]
        if table.is_contiguous():
            table.view(-1, self.grain).index_add_(0, self._flat(), U.to(table.dtype))
        else:
            table.add_(self.combine(c)[0].view(table.shape).to(table.dtype))

    def laid_out(self) -> Self:
        return self

    def rows(self, start: int, stop: int) -> Tensor:
        return self[start:stop].columns(0, self.width)

    def columns(self, start: int, stop: int) -> Tensor:
        first, count = start // self.grain, (stop - start) // self.grain
        v = self.index.long() - first
        v = torch.where((v >= 0) & (v < count), v, count)  # the others go to a place that is cut off
        at = torch.arange(v.numel() // self.T, device=v.device).repeat_interleave(self.T) * (count + 1)
        R = self.D.new_zeros(v.numel() // self.T * (count + 1), self.grain, dtype=torch.float64)
        R.index_add_(0, v.flatten() + at, self.D.double().flatten(0, -2))
        return R.view(*self.lead, self.n, count + 1, self.grain)[..., :count, :].flatten(-2)

    def tensors(self) -> dict[str, Tensor]:
        return {"index": self.index, "D": self.D}

    def split(self) -> tuple["Block", ...]:
        return (self,)

    def fits(self, other: "Block") -> bool:
        return isinstance(other, Sparse) and (self.V, self.T) == (other.V, other.T) and alike(self.D, other.D)

    def joined(self, *others: "Block") -> Self:
        every = [block.tensors() for block in (self, *others)]
        index = torch.cat([t["index"] for t in every], -1)
        return replace(self, index=index, D=torch.cat([t["D"] for t in every], -2))

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return replace(self, index=self.index.to(device), D=self.D.to(device, dtype))

    def __getitem__(self, rows: slice) -> Self:
        rows = slice(rows.start * self.T, rows.stop * self.T)
        return replace(self, index=self.index[..., rows], D=self.D[..., rows, :])

    def _flat(self) -> Tensor:
        """The rows of the tables of all runs, one below the other, (·n·T)."""
        runs = self.index.reshape(-1, self.index.shape[-1]).long()
        return (runs + self.V * torch.arange(len(runs), device=runs.device).unsqueeze(1)).flatten()

    def _runs(self) -> list["Sparse"]:
        pairs = zip(self.index.flatten(0, -2), self.D.flatten(0, -3), strict=True)
        return [replace(self, index=index, D=D) for index, D in pairs]


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors can be joined along their rows."""
    same_axes = one.shape[:-2] == other.shape[:-2] and one.shape[-1] == other.shape[-1]
    return same_axes and one.dtype == other.dtype and one.device == other.device


def _merged(block: Sparse) -> tuple[Tensor, Tensor, Tensor]:
    """The entries (v, i, Σ δ) of a block, each v and i once, in the order of v."""
    i = torch.arange(block.n, device=block.device).repeat_interleave(block.T)
    key, place = torch.unique(block.index.long() * block.n + i, return_inverse=True)
    D = block.D.new_zeros(len(key), block.grain, dtype=torch.float64).index_add_(0, place, block.D.double())
    n = max(block.n, 1)
    return key // n, key % n, D


def _shared(one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor], n: int, m: int) -> Tensor:
    """K_ij = Σ_v Δ_iv · Δ'_jv: entries of the table that many rows share by a product each, the rest in pairs."""
    (v, i, D), (w, j, E) = one, other
    K = D.new_zeros(n, m)
    tokens, counts = torch.unique_consecutive(v, return_counts=True)
    first = torch.searchsorted(w, tokens)
    sizes = torch.searchsorted(w, tokens, right=True) - first
    often = counts * sizes > OFTEN
    starts = counts.cumsum(0) - counts
    for a, p, b, q in torch.stack([starts, counts, first, sizes], 1)[often].tolist():
        K[i[a : a + p].unsqueeze(1), j[b : b + q]] += D[a : a + p] @ E[b : b + q].mT
    sizes = torch.where(often, 0, sizes).repeat_interleave(counts)  # partners of each entry
    first = first.repeat_interleave(counts)
    step = max(CHUNK // max(D.shape[-1], 1), 1)
    mine = torch.arange(len(v), device=v.device).repeat_interleave(sizes)
    theirs = torch.arange(len(mine), device=v.device) - (sizes.cumsum(0) - sizes - first).repeat_interleave(sizes)
    for start in range(0, len(mine), step):
        a, b = mine[start : start + step], theirs[start : start + step]
        K.view(-1).index_add_(0, i[a] * m + j[b], (D[a] * E[b]).sum(-1))
    return K
