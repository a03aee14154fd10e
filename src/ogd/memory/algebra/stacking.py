"""The pieces of several single models side by side: the pieces of their stack."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ogd.memory.algebra.blocks import Block, Convolved, Dense, Factored
from ogd.memory.algebra.sparse import Sparse
from ogd.memory.algebra.store import Piece, appended


def stacked(runs: Sequence[list[Piece]]) -> list[Piece]:
    """Pieces with a leading axis R from the pieces of R single models of the same parameters and rows.

    Pieces that have the same form in all runs keep it. Others (factored in one run and dense in another, or of
    other rows) become dense, parameter by parameter.

    Examples:
        >>> one, other = (Piece(("weight",), Dense(torch.randn(4, 6))) for _ in range(2))
        >>> [piece.block.G.shape for piece in stacked([[one], [other]])]
        [torch.Size([2, 4, 6])]
    """
    if not runs:
        raise ValueError("runs is empty: there is nothing to stack")
    plain = [[part for piece in pieces for part in _unfolded(piece)] for pieces in runs]
    forms = [{_form(piece): piece for piece in appended((), pieces)} for pieces in plain]
    common = [form for form in forms[0] if all(form in others for others in forms)]
    result = [replace(forms[0][form], block=_side_by_side([pieces[form].block for pieces in forms])) for form in common]
    rest = [[piece for form, piece in pieces.items() if form not in common] for pieces in forms]
    names = dict.fromkeys(name for pieces in rest for piece in pieces for name in piece.names)
    return result + [_dense(name, rest) for name in names]


def _unfolded(piece: Piece) -> list[Piece]:
    """A convolution's piece as outer products or written out, whichever is smaller; others as they are."""
    block = piece.block
    if not isinstance(block, Convolved):
        return [piece]
    if block.groups == 1 and block.T * (block.grain + block.D.shape[1]) < block.width:
        A, D = block.patches().mT.flatten(0, 1), block.D.flatten(2).mT.flatten(0, 1)
        return [replace(piece, block=Factored(A, D, bias=block.bias, T=block.T))]
    parts = zip(piece.names, block.split(), strict=True)
    return [Piece((name,), Dense(part.rows(0, part.n).to(block.D.dtype)), piece.start) for name, part in parts]


def _form(piece: Piece) -> Hashable:
    return piece.names, piece.start, type(piece.block), piece.block.form


def _side_by_side(blocks: Sequence[Block]) -> Block:
    def along_runs(key: str) -> Tensor:
        return torch.stack([block.tensors()[key] for block in blocks])  # (R, ...)

    first = blocks[0]
    if isinstance(first, Factored):
        return replace(first, A=along_runs("A"), D=along_runs("D"))
    if isinstance(first, Sparse):
        return replace(first, index=along_runs("index"), D=along_runs("D"))
    return Dense(along_runs("G"))


def _dense(name: str, runs: Sequence[list[Piece]]) -> Piece:
    """The rows of one parameter written out, (R, n, p)."""
    parts = [[part for piece in pieces for part in piece.only({name})] for pieces in runs]
    found = [_extent(pieces) for pieces in parts]
    if len(set(found)) > 1:
        told = "; ".join(f"run {r}: {extent}" for r, extent in enumerate(found))
        raise ValueError(f"the gradients of {name!r} do not match between the runs, so they cannot be stacked: {told}")
    return Piece((name,), Dense(torch.stack([_written_out(pieces) for pieces in parts])), _start(parts[0]))


def _written_out(pieces: Sequence[Piece]) -> Tensor:
    start = _start(pieces)
    first = next(t for t in pieces[0].block.tensors().values() if t.is_floating_point())
    G = first.new_zeros(max(piece.stop for piece in pieces) - start, pieces[0].block.rows(0, 0).shape[-1])  # (n, p)
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
