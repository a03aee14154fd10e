"""K = G Gᵀ, extended by new rows."""

from collections.abc import Collection

import torch
from torch import Tensor

from ogd.memory.blocks.pieces import Piece
from ogd.memory.ranks.collective import stream_items, sum_over_ranks


def extend_gram(K: Tensor, pieces: Collection[Piece], n: int) -> Tensor:
    """Return K of all n rows of G from K of the first rows."""
    old, rows = K.shape[-1], _new_rows(K, pieces, n)
    return assemble_gram(K, rows[..., :old], rows[..., old:])


def summed_gram(K: Tensor, pieces: Collection[Piece], n: int) -> Tensor:
    """Return K of all n rows of G, of which each rank has some columns. Collective."""
    old = K.shape[-1]
    (rows,) = sum_over_ranks(_new_rows(K, pieces, n))
    return assemble_gram(K, rows[:, :old], rows[:, old:])


def _new_rows(K: Tensor, pieces: Collection[Piece], n: int) -> Tensor:
    """Return the rows of K that it lacks, and compute each overlap once."""
    old = K.shape[-1]
    rows = K.new_zeros(*K.shape[:-2], n - old, n)  # (..., new, n)
    before = [piece.between(0, old) for piece in pieces if piece.start < old]
    new = [piece.since(old) for piece in pieces if piece.stop > old]
    for i, piece in enumerate(new):
        mine = slice(piece.start - old, piece.stop - old)
        for other in before + new[i:]:
            overlap = piece.gram(other)
            if overlap is not None:
                rows[..., mine, other.start : other.stop] += overlap.to(K.device)
                if other.start >= old and other is not piece:
                    rows[..., other.start - old : other.stop - old, piece.start : piece.stop] += overlap.mT.to(K.device)
    return rows


def sharded_gram(K: Tensor, pieces: Collection[Piece], n: int) -> Tensor:
    """Return K of all n rows of a sharded G. Each rank multiplies the new rows of all ranks by its own. Collective."""
    old = K.shape[-1]
    rows = K.new_zeros(n - old, n)
    for new in stream_items([piece.since(old) for piece in pieces if piece.stop > old], K.device):
        for other in pieces:
            overlap = new.gram(other)
            if overlap is not None:
                rows[new.start - old : new.stop - old, other.start : other.stop] += overlap.to(K.device)
    (rows,) = sum_over_ranks(rows)
    return assemble_gram(K, rows[:, :old], rows[:, old:])


def assemble_gram(K: Tensor, cross: Tensor, corner: Tensor) -> Tensor:
    """Return K of old and new rows from the old K (..., n, n), G_new G_oldᵀ (..., m, n), G_new G_newᵀ (..., m, m).

    Examples:
        >>> G = torch.randn(5, 8, dtype=torch.float64)
        >>> torch.allclose(assemble_gram(G[:3] @ G[:3].mT, G[3:] @ G[:3].mT, G[3:] @ G[3:].mT), G @ G.mT)
        True
    """
    if not K.shape[-1]:
        return corner
    return torch.cat([torch.cat([K, cross.mT], -1), torch.cat([cross, corner], -1)], -2)
