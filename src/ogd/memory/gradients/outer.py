"""The pieces of G for sums of outer products: factored or written out, whichever is smaller."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.pieces import Piece


def outer_pieces(names: Sequence[str], A: Tensor, D: Tensor, out_first: bool) -> list[Piece]:
    """Pieces of a weight, and of a bias if two names are given, from A (k, B, T, in) and D (k, B, T, out)."""
    T, into, out = A.shape[2], A.shape[3], D.shape[3]
    bias = len(names) == 2
    dtype = torch.promote_types(A.dtype, D.dtype)  # a model may use autocast itself
    A, D = by_rows(A).to(dtype), by_rows(D).to(dtype)  # (B·k, T, ·)
    if T * (into + out) < into * out + bias * out:
        # copied: A may be the very tensor that the caller gave the model, and may change it later
        A, D = (F.flatten(0, 1).clone(memory_format=torch.contiguous_format) for F in (A, D))
        return [Piece(tuple(names), Factored(A, D, bias=bias, T=T, out_first=out_first))]
    G = (D.mT @ A if out_first else A.mT @ D).flatten(1)
    parts = zip(names, (G, D.sum(1)), strict=False)
    return [Piece((name,), Dense(part)) for name, part in parts]


def by_rows(t: Tensor) -> Tensor:
    """(k, B, ...) → (B·k, ...): example by example, output by output, as the rows of G are."""
    return t.transpose(0, 1).flatten(0, 1)
