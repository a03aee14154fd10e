"""Combinations of stored gradients, written out: rows C G for a few rows of C, without forming all of G.

A written-out row is as long as the model has weights, where an outer product is as long as its two factors together.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ogd.memory.algebra.blocks import Block, Dense
from ogd.memory.algebra.gram import CHUNK
from ogd.memory.algebra.store import Piece


def written_out(pieces: Iterable[Piece], C: Tensor, dtype: torch.dtype) -> list[Piece]:
    """C G as one dense piece per parameter, C (..., k, n) in float64.

    Examples:
        >>> G = torch.arange(6.0).view(3, 2)
        >>> written_out([Piece(("w",), Dense(G))], torch.ones(1, 3).double(), torch.float32)[0].block.G
        tensor([[6., 9.]])
    """
    found: dict[str, Tensor] = {}
    for piece in pieces:
        mine = C[..., piece.start : piece.stop]
        for name, part in zip(piece.names, piece.block.split(), strict=True):
            rows = _combined(part, mine, dtype)
            found[name] = found[name] + rows if name in found else rows
    return [Piece((name,), Dense(rows)) for name, rows in found.items()]


def _combined(block: Block, C: Tensor, dtype: torch.dtype) -> Tensor:
    """C G (..., k, p) of a block of one parameter, some columns at a time."""
    step = max(CHUNK // max(block.lead.numel() * block.n, 1) // block.grain, 1) * block.grain
    starts = range(0, block.width, step)
    return torch.cat([(C @ block.columns(a, min(a + step, block.width))).to(dtype) for a in starts], -1)
