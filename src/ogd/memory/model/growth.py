"""Layers whose outputs grow (5 → 10 classes): the stored gradients get zeros for the new outputs.

No remembered output depends on a row of the weight, or an entry of the bias, that was not there: its gradient is zero.
New inputs are another matter: on the old examples they had values that nobody stored.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch.nn import functional

from ogd.memory.algebra.blocks import Convolved, Dense, Factored
from ogd.memory.algebra.store import Piece, Shapes, Store


def padded(store: Store, shapes: Shapes) -> Store:
    """The store for parameters some of which have grown to `shapes`; K stays as it is.

    Raises where a parameter has grown otherwise than in its outputs.
    """
    grown = {name: shape for name, shape in shapes.items() if store.shapes.get(name, shape) != shape}
    pieces = [part for piece in store.pieces for part in _padded(piece, store.shapes, grown)]
    after = Store(pieces, store.tasks, {**store.shapes, **grown}, store.each, store.sharded)
    after.grams = dict(store.grams)
    return after


def _padded(piece: Piece, old: Shapes, new: Mapping[str, torch.Size]) -> list[Piece]:
    if not any(name in new for name in piece.names):
        return [piece]
    block = piece.block
    if isinstance(block, Factored) and _outputs_grow(piece, old, new):
        width = new[piece.names[0]][0 if block.out_first else -1]
        D = functional.pad(block.D, (0, width - block.D.shape[-1]))
        return [replace(piece, block=replace(block, D=D))]
    if isinstance(block, Convolved) and block.groups == 1 and _outputs_grow(piece, old, new):
        D = functional.pad(block.D, (0, 0, 0, 0, 0, new[piece.names[0]][0] - block.D.shape[1]))
        return [replace(piece, block=replace(block, D=D))]
    return [
        part if part.names[0] not in new else _padded_rows(part, old[part.names[0]], new[part.names[0]])
        for name in piece.names
        for part in piece.only({name})
    ]


def _outputs_grow(piece: Piece, old: Shapes, new: Shapes) -> bool:
    """Whether the weight, and the bias where there is one, have only gained outputs."""
    block = piece.block
    weight, *bias = piece.names
    if weight not in new or (bias and bias[0] not in new):
        return False
    before, after = old[weight], new[weight]
    axis = len(before) - 1 if isinstance(block, Factored) and not block.out_first else 0
    same = len(before) == len(after) and all(
        a == b for i, (a, b) in enumerate(zip(before, after, strict=True)) if i != axis
    )
    return same and after[axis] > before[axis] and all(new[name] == (after[axis],) for name in bias)


def _padded_rows(piece: Piece, old: torch.Size, new: torch.Size) -> Piece:
    (name,) = piece.names
    if len(old) != len(new) or not old or old[1:] != new[1:] or new[0] < old[0]:
        raise ValueError(
            f"parameter {name!r} has shape {tuple(new)}, its stored gradients {tuple(old)}: only the outputs of a "
            "layer may grow (its first axis); give a different layer a new name, or forget the tasks and remember "
            "them again"
        )
    first = next(iter(piece.block.tensors().values()))
    G = piece.block.rows(0, piece.block.n).to(first.dtype)
    return replace(piece, block=Dense(functional.pad(G, (0, new.numel() - old.numel()))))
