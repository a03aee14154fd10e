"""Gradients of a linear map, stored as outer products or sums of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from ogd.checks import whole_number
from ogd.memory.blocks.block import Block, check_numbers
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.gram import factored_gram, gram_by_parts


@dataclass(frozen=True, eq=False)
class Factored(Block):
    """Row i is Σ_t a_it ⊗ δ_it, and Σ_t δ_it for the bias.

    a is the layer's input and δ the gradient at its output. A row is the sum of T outer products: 1 for a Linear
    layer on vectors, the length for a sequence, the number of output positions for a convolution.

        gram       (A Aᵀ + 1) ∘ (D Dᵀ)        the 1 is the bias; for T > 1 see gram.py
        overlap    rowsum((A U + b) ∘ D)
        combine    Aᵀ (c ∘ D),  Σ c ∘ D
    """

    kind: ClassVar[str] = "factored"
    row_axes: ClassVar[Mapping[str, int]] = {"A": -2, "D": -2}

    A: Tensor  # (..., n·T, in)
    D: Tensor  # (..., n·T, out)
    bias: bool = True
    T: int = 1
    out_first: bool = True  # the weight is (..., out, in) as in nn.Linear and nn.Conv2d; else (..., in, out)

    @property
    def entries(self) -> int:
        return self.T

    @property
    def products(self) -> int:
        return self.T

    @property
    def lead(self) -> torch.Size:
        return self.A.shape[:-2]

    @property
    def width(self) -> int:
        return self.A.shape[-1] * self.D.shape[-1]

    @property
    def grain(self) -> int:
        return self.A.shape[-1] if self.out_first else self.D.shape[-1]

    def gram(self, other: Block) -> Tensor:
        return factored_gram(self, other) if isinstance(other, Factored) else gram_by_parts(self, other)

    def gram_cost(self, n: int, m: int) -> float:
        pairs = n * m / 2 * self.T**2 * (self.A.shape[-1] + self.D.shape[-1])
        return min(pairs, self.columns_cost(n, m))

    def squares(self) -> Tensor:
        if self.T > 1:
            return super().squares()
        return (self.A.double().square().sum(-1) + self.bias) * self.D.double().square().sum(-1)

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        Y = self._matrix(update[0].to(self.A.dtype)) @ self.A.mT  # (..., out, n·T)
        if self.bias:
            Y += update[1].to(Y.dtype).unsqueeze(-1)
        s = Y.mul_(self.D.mT).sum(-2)
        return s if self.T == 1 else torch.unflatten(s, -1, (self.n, self.T)).sum(-1)

    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        X = self._weigh(c)
        U = X @ self.A if self.out_first else (X @ self.A).mT
        return (U, X.sum(-1)) if self.bias else (U,)

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += combine(c)` in place, inside the matrix product where the layout allows it."""
        weight = params[0]
        if self.A.ndim > 3 or weight.dtype != self.A.dtype or not weight.is_contiguous():
            return super().add_combination(params, c)
        X = self._weigh(c)
        matrix = self._matrix(weight)
        if matrix.ndim == 2:
            matrix.addmm_(X, self.A)
        else:
            matrix.baddbmm_(X, self.A)
        if self.bias:
            params[1].add_(X.sum(-1))
        return None

    def optimize_layout(self) -> Self:
        """Return a copy in which Dᵀ is contiguous, which makes `overlap` and `combine` a fifth faster."""
        return replace(self, D=self.D.mT.contiguous().mT)

    @property
    def layout_nbytes(self) -> int:
        return self.D.nbytes

    def rows(self, start: int, stop: int) -> Tensor:
        part = self[start:stop]
        A, D = (torch.unflatten(F, -2, (part.n, self.T)).double() for F in (part.A, part.D))
        W = D.mT @ A if self.out_first else A.mT @ D
        return torch.cat([W.flatten(-2), D.sum(-2)], -1) if self.bias else W.flatten(-2)

    def columns(self, start: int, stop: int) -> Tensor:
        one, other = (self.D, self.A) if self.out_first else (self.A, self.D)
        one = one[..., start // self.grain : stop // self.grain]
        X, Y = (torch.unflatten(F, -2, (self.n, self.T)).double() for F in (one, other))
        return (X.mT @ Y).flatten(-2)

    def split(self) -> tuple[Block, ...]:
        weight = replace(self, bias=False)
        delta = self.D if self.T == 1 else torch.unflatten(self.D, -2, (self.n, self.T)).sum(-2)
        return (weight, Dense(delta)) if self.bias else (weight,)

    def pad(self, old: Sequence[torch.Size], new: Sequence[torch.Size]) -> Block | None:
        axis = 0 if self.out_first else len(old[0]) - 1
        if not outputs_grow(old, new, axis):
            return None
        return replace(self, D=functional.pad(self.D, (0, new[0][axis] - old[0][axis])))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[torch.Size]) -> Self:
        bias, out_first = bool(state["bias"]), bool(state["out_first"])
        block = cls(tensors["A"], tensors["D"], bias, whole_number(state["T"], 1), out_first)
        weight, *rest = sizes
        if len(weight) < 2:
            raise ValueError(f"outer products need a weight of two axes or more, not of shape {tuple(weight)}")
        out, into = (weight[0], weight[1:].numel()) if out_first else (weight[-1], weight[:-1].numel())
        if [*rest] != [torch.Size((out,))] * bias or len(block.A) % block.T:
            raise ValueError(f"outer products do not fit parameters of sizes {[tuple(size) for size in sizes]}")
        check_numbers(block.A, (len(block.A), into), "A")
        check_numbers(block.D, (len(block.A), out), "D")
        return block

    def describe(self) -> str:
        return f"factored: {self.T} outer product{'s' if self.T > 1 else ''} per direction"

    def _weigh(self, c: Tensor) -> Tensor:
        c = c if self.T == 1 else c.repeat_interleave(self.T, -1)
        return c.unsqueeze(-2) * self.D.mT  # (..., out, n·T)

    def _matrix(self, weight: Tensor) -> Tensor:
        """Return a weight, for example a convolution's, as Uᵀ (..., out, in)."""
        return weight.flatten(self.A.ndim - 1) if self.out_first else weight.mT


def outputs_grow(old: Sequence[torch.Size], new: Sequence[torch.Size], axis: int) -> bool:
    """Return whether a weight, and its bias if it has one, have only gained outputs along an axis of the weight."""
    before, after = old[0], new[0]
    if len(before) != len(after) or after[axis] <= before[axis]:
        return False
    same = all(a == b for i, (a, b) in enumerate(zip(before, after, strict=True)) if i != axis)
    return same and all(size == (after[axis],) for size in new[1:])
