"""Stacks of the pieces of several models, and combinations of their rows, for the laboratory."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ogd.memory.blocks.block import Block
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.gram import CHUNK
from ogd.memory.blocks.pieces import Piece, append_pieces


def stacked(runs: Sequence[list[Piece]]) -> list[Piece]:
    """Return pieces with a leading axis R from the pieces of R models with the same parameters and rows.

    Pieces that have the same form in all runs keep it. Other pieces, for example factored in one run and dense in
    another, become one dense piece per parameter.

    Examples:
        >>> one, other = (Piece(("weight",), Dense(torch.randn(4, 6))) for _ in range(2))
        >>> [piece.block.G.shape for piece in stacked([[one], [other]])]
        [torch.Size([2, 4, 6])]
    """
    if not runs:
        raise ValueError("runs is empty: give the pieces of at least one model")
    plain = [[part for piece in pieces for part in _stackable(piece)] for pieces in runs]
    forms = [{_form(piece): piece for piece in append_pieces((), pieces)} for pieces in plain]
    common = [form for form in forms[0] if all(form in others for others in forms)]
    result = [replace(forms[0][form], block=_stack_blocks([pieces[form].block for pieces in forms])) for form in common]
    rest = [[piece for form, piece in pieces.items() if form not in common] for pieces in forms]
    names = dict.fromkeys(name for pieces in rest for piece in pieces for name in piece.names)
    return result + [_dense(name, rest) for name in names]


def _stackable(piece: Piece) -> list[Piece]:
    """Return the piece in a form that can have leading axes."""
    blocks = piece.block.stackable()
    if len(blocks) < len(piece.names):
        return [replace(piece, block=blocks[0])]
    return [Piece((name,), block, piece.start) for name, block in zip(piece.names, blocks, strict=True)]


def _form(piece: Piece) -> Hashable:
    return piece.names, piece.start, piece.block.form


def _stack_blocks(blocks: Sequence[Block]) -> Block:
    """Return the blocks of R runs as one block, (R, ...)."""
    every = [block.tensors() for block in blocks]
    return replace(blocks[0], **{name: torch.stack([t[name] for t in every]) for name in every[0]})


def _dense(name: str, runs: Sequence[list[Piece]]) -> Piece:
    """Return the dense rows of one parameter, (R, n, p)."""
    parts = [[part for piece in pieces for part in piece.only({name})] for pieces in runs]
    found = [_extent(pieces) for pieces in parts]
    if len(set(found)) > 1:
        rows = "; ".join(f"run {r}: {extent}" for r, extent in enumerate(found))
        raise ValueError(f"the gradients of {name!r} do not match between the runs, so they cannot be stacked: {rows}")
    return Piece((name,), Dense(torch.stack([_dense_rows(pieces) for pieces in parts])), _start(parts[0]))


def _dense_rows(pieces: Sequence[Piece]) -> Tensor:
    start = _start(pieces)
    first = pieces[0].block
    size = (max(piece.stop for piece in pieces) - start, first.rows(0, 0).shape[-1])
    G = torch.zeros(size, dtype=first.dtype, device=first.device)  # (n, p)
    for piece in pieces:
        G[piece.start - start : piece.stop - start] = piece.block.rows(0, piece.block.n)
    return G


def _start(pieces: Sequence[Piece]) -> int:
    return min(piece.start for piece in pieces)


def _extent(pieces: Sequence[Piece]) -> str:
    if not pieces:
        return "none"
    widths = sorted({piece.block.rows(0, 0).shape[-1] for piece in pieces})
    return f"rows {_start(pieces)} to {max(p.stop for p in pieces)} of {' and '.join(map(str, widths))} numbers"


def combine_rows(pieces: Iterable[Piece], C: Tensor, dtype: torch.dtype) -> list[Piece]:
    """Return C G as one dense piece per parameter, for C (..., k, n) in float64, without forming all of G.

    Examples:
        >>> G = torch.arange(6.0).view(3, 2)
        >>> combine_rows([Piece(("w",), Dense(G))], torch.ones(1, 3).double(), torch.float32)[0].block.G
        tensor([[6., 9.]])
    """
    found: dict[str, Tensor] = {}
    for piece in pieces:
        mine = C[..., piece.start : piece.stop]
        for name, part in zip(piece.names, piece.block.split(), strict=True):
            rows = _combine_columns(part, mine, dtype)
            found[name] = found[name] + rows if name in found else rows
    return [Piece((name,), Dense(rows)) for name, rows in found.items()]


def _combine_columns(block: Block, C: Tensor, dtype: torch.dtype) -> Tensor:
    """Return C G (..., k, p) of a block of one parameter, some columns at a time."""
    step = max(CHUNK // max(block.lead.numel() * block.n, 1) // block.grain, 1) * block.grain
    starts = range(0, block.width, step)
    return torch.cat([(C @ block.columns(a, min(a + step, block.width))).to(dtype) for a in starts], -1)
