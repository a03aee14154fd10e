"""Gradients of a convolution, kept as its input and the gradient at its output: no patch is laid out."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.algebra import convolution
from ogd.memory.algebra.convolution import PART, patches, weight_gradient
from ogd.memory.algebra.dense import Dense, add_to
from ogd.memory.algebra.gram import by_parts
from ogd.memory.algebra.precision import working

if TYPE_CHECKING:
    from ogd.memory.algebra.blocks import Block

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Convolved:
    """Row i of G is the gradient of a convolution's weight, and of its bias, from its input x_i and δ_i at its output.

    gram       see convolution.py
    overlap    ⟨δ_i, x_i ∗ U + b⟩
    combine    Σ_i c_i ∂⟨δ_i, x_i ∗ U⟩ / ∂U,  Σ c δ

    A sequence is an image of height 1. Of a single model only: `stacking` unfolds it for a stack of runs.
    """

    X: Tensor  # (n, C, H, W)
    D: Tensor  # (n, O, h, w)
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def lead(self) -> torch.Size:
        return torch.Size()

    @property
    def form(self) -> Hashable:
        return self.X.shape, self.D.shape, *self._geometry()

    @property
    def nbytes(self) -> int:
        return self.X.nbytes + self.D.nbytes

    @property
    def device(self) -> torch.device:
        return self.X.device

    @property
    def T(self) -> int:
        """Positions of the output: outer products of which a row is the sum."""
        return self.D.shape[2] * self.D.shape[3]

    @property
    def S(self) -> int:
        """Positions of the input."""
        return self.X.shape[2] * self.X.shape[3]

    @property
    def width(self) -> int:
        return self.D.shape[1] * self.grain

    @property
    def grain(self) -> int:
        """The columns of one output channel."""
        return self.X.shape[1] // self.groups * self.kernel[0] * self.kernel[1]

    def gram(self, other: "Block") -> Tensor:
        if not isinstance(other, Convolved):
            return by_parts(self, other)
        pairs = zip(self._by_group(), [None] * self.groups if other is self else other._by_group(), strict=True)
        K = torch.stack([convolution.gram(one, one if two is None else two) for one, two in pairs]).sum(0)
        return K + self._biases() @ other._biases().mT if self.bias else K

    def squares(self) -> Tensor:
        """|g_i|² of every row, (n,)."""
        rows = [self[i : i + 1].rows(0, 1).square().sum() for i in range(self.n)]
        return torch.stack(rows) if rows else self.X.new_zeros(0, dtype=torch.float64)

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        U = update[0].to(self.X.dtype).reshape(self.D.shape[1], -1, *self.kernel)
        b = update[1].to(self.X.dtype) if self.bias else None
        how = (self.stride, self.padding, self.dilation, self.groups)
        sums = [functional.conv2d(part.X, U, b, *how).mul_(part.D).sum((1, 2, 3)) for part in self._parts()]
        return torch.cat(sums) if sums else self.X.new_zeros(0)

    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        U = self.X.new_zeros(self.D.shape[1], self.X.shape[1] // self.groups, *self.kernel)
        b = self.X.new_zeros(self.D.shape[1])
        how = (self.stride, self.padding, self.dilation, self.groups)
        for part, weights in zip(self._parts(), c.split(self._step()), strict=self.n > 0):
            cD = weights.view(-1, 1, 1, 1) * part.D
            U += weight_gradient(part.X, cD, U.shape, *how)
            b += cD.sum((0, 2, 3))
        return (U.flatten(1), b) if self.bias else (U.flatten(1),)

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += combine(c)` in place."""
        add_to(params, self.combine(c))

    def laid_out(self) -> Self:
        return self

    def rows(self, start: int, stop: int) -> Tensor:
        part = self[start:stop]
        G = part.columns(0, self.width)
        return torch.cat([G, part._biases()], -1) if self.bias else G

    def columns(self, start: int, stop: int) -> Tensor:
        """Columns start:stop of the weight's G, (n, stop − start)."""
        found, each = [], self.D.shape[1] // self.groups
        for g, part in enumerate(self._by_group()):
            first, last = (min(max(column // self.grain - g * each, 0), each) for column in (start, stop))
            D = part.D[:, first:last].flatten(2).double()
            found.append((D @ part.patches().double().mT).flatten(1))
        return torch.cat(found, -1)

    def of_channels(self, channels: slice) -> Tensor:
        """The columns of some input channels, (n, channels · kernel · O), in an order of their own.

        In the precision of the stored numbers, as a gradient that is written out is; of half precision in float32.
        """
        dtype = working(self.X.dtype)
        part = replace(self, X=self.X[:, channels].to(dtype))
        return (part.patches() @ self.D.flatten(2).to(dtype).mT).flatten(1)

    def of_outputs(self, outputs: slice) -> Tensor:
        """The columns of some output channels, (n, outputs · grain), in the same precision.

        One row after the other, as PyTorch's own convolutions are faster than patches where the output is large.
        """
        dtype = working(self.X.dtype)
        X, D = self.X.to(dtype), self.D[:, outputs].to(dtype)
        weight = torch.Size((D.shape[1], X.shape[1], *self.kernel))
        how = (self.stride, self.padding, self.dilation, 1)
        G = X.new_empty(self.n, self.grain * D.shape[1])
        for x, d, g in zip(X.split(1), D.split(1), G, strict=self.n > 0):
            g.view(weight).copy_(weight_gradient(x, d, weight, *how))
        return G

    def tensors(self) -> dict[str, Tensor]:
        return {"X": self.X, "D": self.D}

    def split(self) -> tuple["Block", ...]:
        """The same gradients as one block per parameter."""
        weight = replace(self, bias=False)
        return (weight, Dense(self._biases().to(self.D.dtype))) if self.bias else (weight,)

    def fits(self, other: "Block") -> bool:
        """Whether the other's rows can follow these in one block."""
        if not isinstance(other, Convolved) or self._geometry() != other._geometry():
            return False
        pairs = ((self.X, other.X), (self.D, other.D))
        return all((a.shape[1:], a.dtype, a.device) == (b.shape[1:], b.dtype, b.device) for a, b in pairs)

    def joined(self, *others: "Block") -> Self:
        """These rows and those of others that fit, in one block."""
        every = [block.tensors() for block in (self, *others)]
        return replace(self, X=torch.cat([t["X"] for t in every]), D=torch.cat([t["D"] for t in every]))

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return replace(self, X=self.X.to(device, dtype), D=self.D.to(device, dtype))

    def __getitem__(self, rows: slice) -> Self:
        return replace(self, X=self.X[rows], D=self.D[rows])

    def _geometry(self) -> tuple[Hashable, ...]:
        return self.kernel, self.stride, self.padding, self.dilation, self.groups, self.bias

    def patches(self) -> Tensor:
        """(n, C · kernel, T)."""
        return patches(self.X, self.kernel, dilation=self.dilation, stride=self.stride, padding=self.padding)

    def _biases(self) -> Tensor:
        return self.D.double().sum((2, 3))  # (n, O)

    def _by_group(self) -> Iterator["Convolved"]:
        """The weight's groups of output channels, each with the input channels that it reads."""
        if self.groups == 1:
            yield self
            return
        for X, D in zip(self.X.chunk(self.groups, 1), self.D.chunk(self.groups, 1), strict=True):
            yield replace(self, X=X, D=D, groups=1)

    def _step(self) -> int:
        """Rows whose outputs are computed at a time."""
        return max(2 * PART // max(self.D[:1].numel(), 1), 1)

    def _parts(self) -> Iterator["Convolved"]:
        for i in range(0, self.n, self._step()):
            yield self[i : min(i + self._step(), self.n)]
