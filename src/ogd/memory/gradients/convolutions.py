"""The pieces of G for a convolution: as its input and δ, as outer products, or written out, whichever is smallest."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.blocks.convolution import patches
from ogd.memory.blocks.convolved import Convolved
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.factoring import by_rows, outer_pieces


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
    """Pieces of a weight, and of a bias if two names are given, from x (k, B, C, ...) and δ (k, B, O, ...).

    The axes `...` are one or two. What does not differ between the k outputs of an example may have k = 1.
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
    factored = T * (into + out) if groups == 1 else dense  # with groups it is no one sum of outer products
    if convolved < min(factored, dense):
        X, D = (by_rows(t.expand(k, *t.shape[1:])).clone(memory_format=torch.contiguous_format) for t in (x, d))
        sizes = [(int(size[0]), int(size[1])) for size in (kernel, stride, padding, dilation)]
        return [Piece(tuple(names), Convolved(X, D, sizes[0], sizes[1], sizes[2], sizes[3], groups, bias))]
    A = patches(x.flatten(0, 1), kernel, stride=stride, padding=padding, dilation=dilation)
    A = A.mT.unflatten(0, x.shape[:2]).expand(k, -1, -1, -1)  # (k, B, T, in)
    D = d.flatten(3).mT.expand(k, -1, -1, -1)  # (k, B, T, out)
    if groups == 1:
        return outer_pieces(names, A, D, out_first=True)
    A, D = (t.unflatten(3, (groups, -1)).movedim(3, 2) for t in (A, D))  # (k, B, groups, T, ·)
    return [Piece((names[0],), Dense(by_rows((D.mT @ A).flatten(2))))]
