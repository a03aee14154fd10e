"""Layers whose outputs grow (5 → 10 classes): the stored gradients get zeros for the new outputs.

No remembered output depends on a row of the weight, or an entry of the bias, that was not there: its gradient is zero.
New inputs are another matter: on the old examples they had values that nobody stored.
"""

from dataclasses import replace

from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece
from ogd.memory.projection.store import Shapes, Store, shape_error


def pad_store(store: Store, shapes: Shapes) -> Store:
    """The store for parameters some of which have grown to `shapes`; K stays as it is.

    Raises where a parameter has grown otherwise than in its outputs.
    """
    grown = {name: shape for name, shape in shapes.items() if store.shapes.get(name, shape) != shape}
    pieces = [part for piece in store.pieces for part in _pad_piece(piece, store.shapes, grown)]
    after = Store(pieces, store.tasks, {**store.shapes, **grown}, store.rows_per_example, store.sharded)
    after.grams = dict(store.grams)
    return after


def _pad_piece(piece: Piece, old: Shapes, new: Shapes) -> list[Piece]:
    """Pad a piece as it is, else parameter by parameter, else written out."""
    if not any(name in new for name in piece.names):
        return [piece]
    sizes = [old[name] for name in piece.names], [new.get(name, old[name]) for name in piece.names]
    block = piece.block.pad(*sizes)
    if block is not None:
        return [replace(piece, block=block)]
    if len(piece.names) > 1:
        return [part for name in piece.names for alone in piece.only({name}) for part in _pad_piece(alone, old, new)]
    block = Dense(piece.block.rows(0, piece.block.n).to(piece.block.dtype)).pad(*sizes)
    if block is None:
        raise shape_error(piece.names[0], new, old)
    return [replace(piece, block=block)]
