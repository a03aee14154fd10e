"""The pieces of G for sums of outer products: factored or written out, whichever is smaller."""

from collections.abc import Sequence

from torch import Tensor

from ogd.memory.blocks import Dense, Factored
from ogd.memory.store import Piece


def outer_pieces(names: Sequence[str], A: Tensor, D: Tensor, out_first: bool) -> list[Piece]:
    """Pieces of a weight, and of a bias if two names are given, from A (k, B, T, in) and D (k, B, T, out)."""
    T, into, out = A.shape[2], A.shape[3], D.shape[3]
    bias = len(names) == 2
    A, D = (by_rows(F).flatten(0, 1).contiguous() for F in (A, D))  # (B·k·T, ·)
    block = Factored(A, D, bias=bias, T=T, out_first=out_first)
    if T * (into + out) < into * out + bias * out:
        return [Piece(tuple(names), block)]
    parts = zip(names, block.split(), strict=True)
    return [Piece((name,), Dense(part.rows(0, block.n).to(D.dtype))) for name, part in parts]


def by_rows(t: Tensor) -> Tensor:
    """(k, B, ...) → (B·k, ...): example by example, output by output, as the rows of G are."""
    return t.transpose(0, 1).flatten(0, 1)
