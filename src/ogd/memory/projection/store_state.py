"""Convert stored gradients to JSON values and tensors, and back. All that is read is checked.

tasks             the number of rows of each task
rows_per_example  the number of rows per example of each task
shapes            the shapes of the parameters
pieces            the kind, names and first row of each block; its tensors are `<piece>.A`, `.X`, `.D`, `.index`, `.G`
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ogd.checks import whole_number
from ogd.memory.blocks.pieces import Piece, piece_from_state, piece_state
from ogd.memory.projection.store import Store


def store_state(store: Store) -> dict[str, Any]:
    """Return a store as JSON values, and tensors under "tensors"."""
    pieces: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for i, piece in enumerate(store.pieces):
        entry, own = piece_state(i, piece)
        pieces.append(entry)
        tensors |= own
    return {
        "tasks": list(store.tasks),
        "rows_per_example": list(store.rows_per_example),
        "shapes": {name: list(shape) for name, shape in store.shapes.items()},
        "pieces": pieces,
        "tensors": tensors,
    }


def store_from_state(stored: Mapping[str, Any], params: Mapping[str, Tensor]) -> Store:
    """Return the store of a state; raise a ValueError if the state contradicts itself or the model's parameters."""
    try:
        tasks = [whole_number(rows, 1) for rows in stored["tasks"]]
        rows_per_example = [whole_number(rows, 1) for rows in stored["rows_per_example"]]
        shapes = {str(name): torch.Size(shape) for name, shape in stored["shapes"].items()}
        _check_model(shapes, params)
        tensors = dict(stored["tensors"])
        pieces = [piece_from_state(i, entry, tensors, params) for i, entry in enumerate(stored["pieces"])]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if tensors:
        raise ValueError(f"the state has tensors that belong to no piece: {sorted(tensors)}")
    if any(piece.stop > sum(tasks) for piece in pieces):
        raise ValueError(f"the state has more rows than its tasks, which have {sum(tasks):,}")
    _check_overlap(pieces)
    _check_complete(pieces, sum(tasks))
    if len(rows_per_example) != len(tasks) or any(rows % k for rows, k in zip(tasks, rows_per_example, strict=True)):
        raise ValueError(f"the tasks' {tasks} rows do not make whole examples of {rows_per_example} rows")
    return Store(pieces, tasks, shapes, rows_per_example)


def _check_model(shapes: Mapping[str, torch.Size], params: Mapping[str, Tensor]) -> None:
    missing = [name for name in shapes if name not in params]
    other = [
        f"{name} {tuple(shape)} ≠ {tuple(params[name].shape)}"
        for name, shape in shapes.items()
        if name in params and params[name].shape != shape
    ]
    if missing or other:
        parts = [f"not in the model: {', '.join(missing)}"] * bool(missing)
        parts += [f"of another shape in the model: {'; '.join(other)}"] * bool(other)
        raise ValueError("the memory belongs to another model: " + "; ".join(parts))


def _check_overlap(pieces: list[Piece]) -> None:
    """Raise a ValueError if a row of a parameter is stored twice, because it would count twice."""
    ends: dict[str, int] = {}
    for name, start, stop in sorted((name, p.start, p.stop) for p in pieces for name in p.names):
        if start < ends.get(name, 0):
            raise ValueError(f"the state stores rows of {name} twice")
        ends[name] = stop


def _check_complete(pieces: list[Piece], n: int) -> None:
    """Raise a ValueError if a row is stored for no parameter, because it would count but protect nothing."""
    end = 0
    for start, stop in sorted((piece.start, piece.stop) for piece in pieces):
        if start > end:
            break
        end = max(end, stop)
    if end < n:
        raise ValueError(f"the state claims {n:,} rows, but row {end:,} is stored for no parameter")
