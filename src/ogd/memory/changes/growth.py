"""Stored gradients of layers whose outputs grow (5 → 10 classes), padded with zeros for the new outputs.

No remembered output depends on a new row of the weight or a new entry of the bias, so its gradient is zero. New inputs
are not supported, because their activations on the old examples were not stored.
"""

from dataclasses import replace

from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece
from ogd.memory.projection.store import Shapes, Store, shape_error


def pad_store(store: Store, shapes: Shapes) -> Store:
    """Return the store for parameters that have grown to `shapes`, with the same K.

    A ValueError is raised if a parameter has grown in another way than by new outputs.
    """
    grown = {name: shape for name, shape in shapes.items() if store.shapes.get(name, shape) != shape}
    pieces = [part for piece in store.pieces for part in _pad_piece(piece, store.shapes, grown)]
    after = Store(pieces, store.tasks, {**store.shapes, **grown}, store.rows_per_example, store.sharded)
    after.grams = dict(store.grams)
    return after


def _pad_piece(piece: Piece, old: Shapes, new: Shapes) -> list[Piece]:
    """Pad a piece in its form; if that cannot be done, parameter by parameter, or as dense rows."""
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
