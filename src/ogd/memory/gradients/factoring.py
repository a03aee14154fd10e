"""Inputs and δ → the pieces of G for a matrix product or a convolution, in the smallest form."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.blocks.convolution_geometry import patches
from ogd.memory.blocks.convolved import Convolved
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.pieces import Piece


def outer_pieces(names: Sequence[str], A: Tensor, D: Tensor, out_first: bool) -> list[Piece]:
    """Return the pieces of a weight, and of a bias if there are two names, from A (k, B, T, in), D (k, B, T, out)."""
    T, into, out = A.shape[2], A.shape[3], D.shape[3]
    bias = len(names) == 2
    dtype = torch.promote_types(A.dtype, D.dtype)  # they differ in a model that uses autocast
    A, D = flatten_rows(A).to(dtype), flatten_rows(D).to(dtype)  # (B·k, T, ·)
    if T * (into + out) < into * out + bias * out:
        # copied, because A may be the tensor that the caller passed to the model and may change later
        A, D = (F.flatten(0, 1).clone(memory_format=torch.contiguous_format) for F in (A, D))
        return [Piece(tuple(names), Factored(A, D, bias=bias, T=T, out_first=out_first))]
    G = (D.mT @ A if out_first else A.mT @ D).flatten(1)
    parts = zip(names, (G, D.sum(1)), strict=False)
    return [Piece((name,), Dense(part)) for name, part in parts]


def flatten_rows(t: Tensor) -> Tensor:
    """Arrange (k, B, ...) as (B·k, ...), in the order of the rows of G: example by example, output by output."""
    return t.transpose(0, 1).flatten(0, 1)


def convolution_pieces(
    names: Sequence[str],
    x: Tensor,
    d: Tensor,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> list[Piece]:
    """Return the pieces of a weight, and of a bias if there are two names, from x (k, B, C, ...), δ (k, B, O, ...).

    There are one or two axes `...`. A tensor that is the same for all k outputs may have size 1 on the first axis.
    """
    if x.ndim == 4:  # a sequence is an image of height 1
        x, d, kernel = x.unsqueeze(3), d.unsqueeze(3), (1, *kernel)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    dtype = torch.promote_types(x.dtype, d.dtype)
    x, d = x.to(dtype), d.to(dtype)
    k, bias = max(len(x), len(d)), len(names) == 2
    out, T, convolved = d.shape[2], d.shape[3:].numel(), x[0, 0].numel() + d[0, 0].numel()
    into = x.shape[2] // groups * kernel[0] * kernel[1]
    dense = out * (into + bias)
    factored = T * (into + out) if groups == 1 else dense  # with groups it is not a sum of outer products
    if convolved < min(factored, dense):
        X, D = (flatten_rows(t.expand(k, *t.shape[1:])).clone(memory_format=torch.contiguous_format) for t in (x, d))
        sizes = [(int(size[0]), int(size[1])) for size in (kernel, stride, padding, dilation)]
        return [Piece(tuple(names), Convolved(X, D, sizes[0], sizes[1], sizes[2], sizes[3], groups, bias))]
    A = patches(x.flatten(0, 1), kernel, stride=stride, padding=padding, dilation=dilation)
    A = A.mT.unflatten(0, x.shape[:2]).expand(k, -1, -1, -1)  # (k, B, T, in)
    D = d.flatten(3).mT.expand(k, -1, -1, -1)  # (k, B, T, out)
    if groups == 1:
        return outer_pieces(names, A, D, out_first=True)
    A, D = (t.unflatten(3, (groups, -1)).movedim(3, 2) for t in (A, D))  # (k, B, groups, T, ·)
    return [Piece((names[0],), Dense(flatten_rows((D.mT @ A).flatten(2))))]
