"""One layer's share of G, the matrix whose rows are the stored gradients.

A block answers three questions about its columns of G (n rows), without forming them:

    gram(other)      G G'ᵀ     how stored gradients overlap with one another   (..., n, m), float64
    overlap(update)  G u       how much an update moves each stored output     (..., n)
    combine(c)       Gᵀ c      the update that a combination of rows makes     one tensor per parameter

`update` holds one tensor for each parameter of the block: weight and perhaps bias for a layer, or any one
parameter for `Dense`. The leading axes `...` are for stacks of runs; a single model has none.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import torch
from torch import Tensor

from ogd.memory.algebra.convolved import Convolved
from ogd.memory.algebra.dense import Dense, add_to
from ogd.memory.algebra.gram import by_parts, of_products, squares
from ogd.memory.algebra.sparse import Sparse, alike

__all__ = ["Block", "Convolved", "Dense", "Factored", "Sparse"]


@dataclass(frozen=True, eq=False)
class Factored:
    """Gradients of a linear map as outer products: row i is Σ_t a_it ⊗ δ_it (and Σ_t δ_it for the bias).

    a is the layer's input and δ the gradient at its output. T outer products make one row: 1 for a Linear
    layer on vectors, the length for one on sequences, the output's positions for a convolution.

        gram       (A Aᵀ + 1) ∘ (D Dᵀ)        the 1 is the bias; for T > 1 see gram.py
        overlap    rowsum((A U + b) ∘ D)
        combine    Aᵀ (c ∘ D),  Σ c ∘ D
    """

    A: Tensor  # (..., n·T, in)
    D: Tensor  # (..., n·T, out)
    bias: bool = True
    T: int = 1
    out_first: bool = True  # the weight is (..., out, in) as in nn.Linear and nn.Conv2d; else (..., in, out)

    @property
    def n(self) -> int:
        return self.A.shape[-2] // self.T

    @property
    def lead(self) -> torch.Size:
        return self.A.shape[:-2]

    @property
    def form(self) -> Hashable:
        """What blocks must have in common to stand side by side in a stack."""
        return self.bias, self.T, self.out_first, self.A.shape, self.D.shape

    @property
    def nbytes(self) -> int:
        return self.A.nbytes + self.D.nbytes

    @property
    def device(self) -> torch.device:
        return self.A.device

    @property
    def width(self) -> int:
        """The columns of the weight."""
        return self.A.shape[-1] * self.D.shape[-1]

    @property
    def grain(self) -> int:
        """`columns` begin and end at multiples of this."""
        return self.A.shape[-1] if self.out_first else self.D.shape[-1]

    def gram(self, other: "Block") -> Tensor:
        return of_products(self, other) if isinstance(other, Factored) else by_parts(self, other)

    def squares(self) -> Tensor:
        """|g_i|² of every row, (..., n)."""
        if self.T > 1:
            return sum((squares(part) for part in self.split()), torch.zeros((), dtype=torch.float64))
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
            return add_to(params, self.combine(c))
        X = self._weigh(c)
        matrix = self._matrix(weight)
        if matrix.ndim == 2:
            matrix.addmm_(X, self.A)
        else:
            matrix.baddbmm_(X, self.A)
        if self.bias:
            params[1].add_(X.sum(-1))
        return None

    def laid_out(self) -> Self:
        """The same block with Dᵀ contiguous, which `overlap` and `combine` read: a fifth faster."""
        return replace(self, D=self.D.mT.contiguous().mT)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start:stop of G themselves, (..., stop − start, p)."""
        part = self[start:stop]
        A, D = (torch.unflatten(F, -2, (part.n, self.T)).double() for F in (part.A, part.D))
        W = D.mT @ A if self.out_first else A.mT @ D
        return torch.cat([W.flatten(-2), D.sum(-2)], -1) if self.bias else W.flatten(-2)

    def columns(self, start: int, stop: int) -> Tensor:
        """Columns start:stop of the weight's G, (..., n, stop − start)."""
        one, other = (self.D, self.A) if self.out_first else (self.A, self.D)
        one = one[..., start // self.grain : stop // self.grain]
        X, Y = (torch.unflatten(F, -2, (self.n, self.T)).double() for F in (one, other))
        return (X.mT @ Y).flatten(-2)

    def tensors(self) -> dict[str, Tensor]:
        return {"A": self.A, "D": self.D}

    def split(self) -> tuple["Block", ...]:
        """The same gradients as one block per parameter."""
        weight = replace(self, bias=False)
        delta = self.D if self.T == 1 else torch.unflatten(self.D, -2, (self.n, self.T)).sum(-2)
        return (weight, Dense(delta)) if self.bias else (weight,)

    def fits(self, other: "Block") -> bool:
        """Whether the other's rows can follow these in one block."""
        same = isinstance(other, Factored) and alike(self.A, other.A) and alike(self.D, other.D)
        return same and (self.bias, self.T, self.out_first) == (other.bias, other.T, other.out_first)  # type: ignore[union-attr]

    def joined(self, *others: "Block") -> Self:
        """These rows and those of others that fit, in one block."""
        every = [block.tensors() for block in (self, *others)]
        return replace(self, A=torch.cat([t["A"] for t in every], -2), D=torch.cat([t["D"] for t in every], -2))

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return replace(self, A=self.A.to(device, dtype), D=self.D.to(device, dtype))

    def __getitem__(self, rows: slice) -> Self:
        rows = slice(rows.start * self.T, rows.stop * self.T)
        return replace(self, A=self.A[..., rows, :], D=self.D[..., rows, :])

    def _weigh(self, c: Tensor) -> Tensor:
        c = c if self.T == 1 else c.repeat_interleave(self.T, -1)
        return c.unsqueeze(-2) * self.D.mT  # (..., out, n·T)

    def _matrix(self, weight: Tensor) -> Tensor:
        """A weight, also a convolution's, as Uᵀ (..., out, in)."""
        return weight.flatten(self.A.ndim - 1) if self.out_first else weight.mT


Block: TypeAlias = Factored | Dense | Sparse | Convolved
