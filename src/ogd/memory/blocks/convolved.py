"""Gradients of a convolution, stored as its input and the gradient at its output, without patches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from ogd.checks import whole_number
from ogd.memory.blocks.block import Block, check_numbers, working_dtype
from ogd.memory.blocks.convolution_geometry import PART, convolution_gram, offsets_cost, patches, weight_gradient
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored, outputs_grow

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Convolved(Block):
    """Row i of G is the gradient of a convolution's weight and bias, from its input x_i and δ_i at its output.

    gram       see convolution_geometry.py
    overlap    ⟨δ_i, x_i ∗ U + b⟩
    combine    Σ_i c_i ∂⟨δ_i, x_i ∗ U⟩ / ∂U,  Σ c δ

    A sequence is an image of height 1. Only a single model has such blocks; a stack uses `stackable`.
    """

    kind: ClassVar[str] = "convolved"
    row_axes: ClassVar[Mapping[str, int]] = {"X": 0, "D": 0}

    X: Tensor  # (n, C, H, W)
    D: Tensor  # (n, O, h, w)
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = False

    @property
    def lead(self) -> torch.Size:
        return torch.Size()

    @property
    def T(self) -> int:
        """The number of positions of the output."""
        return self.D.shape[2] * self.D.shape[3]

    @property
    def products(self) -> int:
        return self.T

    @property
    def S(self) -> int:
        """The number of positions of the input."""
        return self.X.shape[2] * self.X.shape[3]

    @property
    def width(self) -> int:
        return self.D.shape[1] * self.grain

    @property
    def grain(self) -> int:
        """The number of columns of one output channel."""
        return self.X.shape[1] // self.groups * self.kernel[0] * self.kernel[1]

    def gram(self, other: Block) -> Tensor:
        if not isinstance(other, Convolved):
            return super().gram(other)
        pairs = zip(self._groups(), [None] * self.groups if other is self else other._groups(), strict=True)
        K = torch.stack([convolution_gram(one, one if two is None else two) for one, two in pairs]).sum(0)
        return K + self._biases() @ other._biases().mT if self.bias else K

    def gram_cost(self, n: int, m: int) -> float:
        return min(n * m / 2 * offsets_cost(self, self), self.columns_cost(n, m))

    def squares(self) -> Tensor:
        rows = [self[i : i + 1].rows(0, 1).square().sum() for i in range(self.n)]
        return torch.stack(rows) if rows else self.X.new_zeros(0, dtype=torch.float64)

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        U = update[0].to(self.X.dtype).reshape(self.D.shape[1], -1, *self.kernel)
        b = update[1].to(self.X.dtype) if self.bias else None
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        sums = [functional.conv2d(part.X, U, b, *geometry).mul_(part.D).sum((1, 2, 3)) for part in self._parts()]
        return torch.cat(sums) if sums else self.X.new_zeros(0)

    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        U = self.X.new_zeros(self.D.shape[1], self.X.shape[1] // self.groups, *self.kernel)
        b = self.X.new_zeros(self.D.shape[1])
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        for part, weights in zip(self._parts(), c.split(self._step()), strict=self.n > 0):
            cD = weights.view(-1, 1, 1, 1) * part.D
            U += weight_gradient(part.X, cD, U.shape, *geometry)
            b += cD.sum((0, 2, 3))
        return (U.flatten(1), b) if self.bias else (U.flatten(1),)

    def rows(self, start: int, stop: int) -> Tensor:
        part = self[start:stop]
        G = part.columns(0, self.width)
        return torch.cat([G, part._biases()], -1) if self.bias else G

    def columns(self, start: int, stop: int) -> Tensor:
        found, each = [], self.D.shape[1] // self.groups
        for g, part in enumerate(self._groups()):
            first, last = (min(max(column // self.grain - g * each, 0), each) for column in (start, stop))
            D = part.D[:, first:last].flatten(2).double()
            found.append((D @ part.patches().double().mT).flatten(1))
        return torch.cat(found, -1)

    def input_columns(self, channels: slice) -> Tensor:
        """Return the columns of some input channels, (n, channels · kernel · O), with the input channels first.

        The precision is that of the stored numbers, or float32 for half precision.
        """
        dtype = working_dtype(self.X.dtype)
        part = replace(self, X=self.X[:, channels].to(dtype))
        return (part.patches() @ self.D.flatten(2).to(dtype).mT).flatten(1)

    def output_columns(self, outputs: slice) -> Tensor:
        """Return the columns of some output channels, (n, outputs · grain), in the precision of `input_columns`.

        Rows are computed one by one, because PyTorch's convolutions are faster than patches for a large output.
        """
        dtype = working_dtype(self.X.dtype)
        X, D = self.X.to(dtype), self.D[:, outputs].to(dtype)
        weight = torch.Size((D.shape[1], X.shape[1], *self.kernel))
        geometry = (self.stride, self.padding, self.dilation, 1)
        G = X.new_empty(self.n, self.grain * D.shape[1])
        for x, d, g in zip(X.split(1), D.split(1), G, strict=self.n > 0):
            g.view(weight).copy_(weight_gradient(x, d, weight, *geometry))
        return G

    def split(self) -> tuple[Block, ...]:
        weight = replace(self, bias=False)
        return (weight, Dense(self._biases().to(self.D.dtype))) if self.bias else (weight,)

    def stackable(self) -> tuple[Block, ...]:
        """Return outer products, or the dense gradients of each parameter, whichever is smaller."""
        if self.groups == 1 and self.T * (self.grain + self.D.shape[1]) < self.width:
            A, D = self.patches().mT.flatten(0, 1), self.D.flatten(2).mT.flatten(0, 1)
            return (Factored(A, D, bias=self.bias, T=self.T),)
        return tuple(Dense(part.rows(0, part.n).to(self.D.dtype)) for part in self.split())

    def pad(self, old: Sequence[torch.Size], new: Sequence[torch.Size]) -> Block | None:
        if self.groups > 1 or not outputs_grow(old, new, 0):
            return None
        return replace(self, D=functional.pad(self.D, (0, 0, 0, 0, 0, new[0][0] - old[0][0])))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[torch.Size]) -> Self:
        (weight, *rest), X, D = sizes, tensors["X"], tensors["D"]
        kernel = weight[2:] if len(weight) == 4 else (1, *weight[2:])
        groups, bias = whole_number(state["groups"], 1), bool(state["bias"])
        least = {"stride": 1, "padding": 0, "dilation": 1}
        stride, padding, dilation = ([whole_number(v, low) for v in state[key]] for key, low in least.items())
        if len(kernel) != 2 or X.ndim != 4 or {len(stride), len(padding), len(dilation)} != {2}:
            raise ValueError("its weight, input, stride, padding and dilation are not those of a convolution")
        axes = zip(X.shape[2:], kernel, stride, padding, dilation, strict=True)
        out = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes]
        if weight[0] % groups or [*rest] != [weight[:1]] * bias:
            raise ValueError(f"a convolution does not fit parameters of sizes {[tuple(size) for size in sizes]}")
        check_numbers(X, (len(X), groups * weight[1], *X.shape[2:]), "X")
        check_numbers(D, (len(X), weight[0], *out), "D")
        pairs = [(int(size[0]), int(size[1])) for size in (kernel, stride, padding, dilation)]
        return cls(X, D, pairs[0], pairs[1], pairs[2], pairs[3], groups, bias)

    def describe(self) -> str:
        x, d = (" × ".join(map(str, t.shape[1:])) for t in (self.X, self.D))
        return f"convolved: an input of {x} and the gradient at an output of {d} per direction"

    def patches(self) -> Tensor:
        """Return the patches of the input, (n, C · kernel, T)."""
        return patches(self.X, self.kernel, dilation=self.dilation, stride=self.stride, padding=self.padding)

    def _biases(self) -> Tensor:
        return self.D.double().sum((2, 3))  # (n, O)

    def _groups(self) -> Iterator["Convolved"]:
        """Yield a block for each group of output channels, with the input channels that the group reads."""
        if self.groups == 1:
            yield self
            return
        for X, D in zip(self.X.chunk(self.groups, 1), self.D.chunk(self.groups, 1), strict=True):
            yield replace(self, X=X, D=D, groups=1)

    def _step(self) -> int:
        """Return the number of rows whose outputs are computed at a time."""
        return max(2 * PART // max(self.D[:1].numel(), 1), 1)

    def _parts(self) -> Iterator["Convolved"]:
        for i in range(0, self.n, self._step()):
            yield self[i : min(i + self._step(), self.n)]
