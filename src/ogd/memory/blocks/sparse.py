"""Gradients of an embedding's table. Only the rows of the table that an example reads are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ogd.checks import whole_number
from ogd.memory.blocks.block import Block, check_numbers
from ogd.memory.blocks.gram import CHUNK

OFTEN = 4096  # pairs of rows of G that share a row of the table, above which a matrix product is faster


@dataclass(frozen=True, eq=False)
class Sparse(Block):
    """Row i of G is Σ_t e(v_it) ⊗ δ_it, where v_it is the table's row read at position t and δ_it the gradient there.

    gram       Σ_ts [v_it = v'_js] δ_it · δ'_js
    overlap    Σ_t U[v_it] · δ_it
    combine    U[v_it] += c_i δ_it
    """

    kind: ClassVar[str] = "sparse"
    row_axes: ClassVar[Mapping[str, int]] = {"index": -1, "D": -2}

    index: Tensor  # (..., n·T), int32: v
    D: Tensor  # (..., n·T, d)
    V: int  # rows of the table
    T: int = 1

    @property
    def entries(self) -> int:
        return self.T

    @property
    def products(self) -> int:
        return self.T

    @property
    def lead(self) -> torch.Size:
        return self.index.shape[:-1]

    @property
    def width(self) -> int:
        return self.V * self.D.shape[-1]

    @property
    def grain(self) -> int:
        return self.D.shape[-1]

    def gram(self, other: Block) -> Tensor:
        if not isinstance(other, Sparse):
            return super().gram(other)
        if not self.lead:
            return _entries_gram(_merge_entries(self), _merge_entries(other), self.n, other.n)
        runs = zip(self._runs(), other._runs(), strict=True)
        return torch.stack([one.gram(two) for one, two in runs]).view(*self.lead, self.n, other.n)

    def squares(self) -> Tensor:
        runs = self._runs() if self.lead else [self]
        totals = []
        for run in runs:
            _, i, D = _merge_entries(run)
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
        U = (c.repeat_interleave(self.T, -1).unsqueeze(-1) * self.D).flatten(0, -2)
        table = params[0]
        if table.is_contiguous():
            table.view(-1, self.grain).index_add_(0, self._flat(), U.to(table.dtype))
        else:
            table.add_(self.combine(c)[0].view(table.shape).to(table.dtype))

    def columns(self, start: int, stop: int) -> Tensor:
        first, count = start // self.grain, (stop - start) // self.grain
        v = self.index.long() - first
        v = torch.where((v >= 0) & (v < count), v, count)  # the others are collected in an extra row, which is cut off
        at = torch.arange(v.numel() // self.T, device=v.device).repeat_interleave(self.T) * (count + 1)
        R = self.D.new_zeros(v.numel() // self.T * (count + 1), self.grain, dtype=torch.float64)
        R.index_add_(0, v.flatten() + at, self.D.double().flatten(0, -2))
        return R.view(*self.lead, self.n, count + 1, self.grain)[..., :count, :].flatten(-2)

    def pad(self, old: Sequence[torch.Size], new: Sequence[torch.Size]) -> Block | None:
        """Return the block for a table with more rows, which no remembered output has read."""
        (before,), (after,) = old, new
        grows = len(before) == len(after) and before[1:] == after[1:] and after[0] >= before[0]
        return replace(self, V=after[0]) if grows else None

    @classmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[torch.Size]) -> Self:
        (table,), index, D = sizes, tensors["index"], tensors["D"]
        V, T = table[0] if len(table) == 2 else 0, whole_number(state["T"], 1)
        inside = index.dtype == torch.int32 and bool(((index >= 0) & (index < V)).all())
        if not inside or index.shape != (len(D),) or len(D) % T:
            raise ValueError(f"its index must hold {T} int32 row numbers below {V} per direction")
        check_numbers(D, (len(D), *table[1:]), "D")
        return cls(index, D, V, T)

    def describe(self) -> str:
        return f"sparse: {self.T} of {self.V:,} rows"

    def _flat(self) -> Tensor:
        """Return the row numbers in the tables of all runs, one below the other, (R·n·T,)."""
        runs = self.index.reshape(-1, self.index.shape[-1]).long()
        return (runs + self.V * torch.arange(len(runs), device=runs.device).unsqueeze(1)).flatten()

    def _runs(self) -> list["Sparse"]:
        pairs = zip(self.index.flatten(0, -2), self.D.flatten(0, -3), strict=True)
        return [replace(self, index=index, D=D) for index, D in pairs]


def _merge_entries(block: Sparse) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entries (v, i, Σ δ) of a block, one for each pair of v and i, sorted by v."""
    i = torch.arange(block.n, device=block.device).repeat_interleave(block.T)
    key, place = torch.unique(block.index.long() * block.n + i, return_inverse=True)
    D = block.D.new_zeros(len(key), block.grain, dtype=torch.float64).index_add_(0, place, block.D.double())
    n = max(block.n, 1)
    return key // n, key % n, D


def _entries_gram(one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor], n: int, m: int) -> Tensor:
    """Return K_ij = Σ_v Δ_iv · Δ'_jv, with one matrix product per v that many rows share, and the rest in pairs."""
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
