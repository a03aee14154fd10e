"""A memory as a dictionary, and as a safetensors file. Nothing read is trusted: all of it is checked.

The file holds the factors of each piece as `<piece>.A`, `.X`, `.D`, `.index` or `.G`, and one JSON
document in its metadata for the rest. K is not stored: it follows from them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ogd import tensor_files
from ogd.checks import is_whole, whole_number
from ogd.json_files import brief
from ogd.memory.blocks.block import DTYPES
from ogd.memory.blocks.pieces import Piece, piece_from_state, piece_state
from ogd.memory.budget import Budget
from ogd.memory.projection.store import Store

if TYPE_CHECKING:
    from ogd.memory.memory import Memory

FORMAT = "ogd.memory"  # the key of the metadata
VERSION = 2


def to_dict(store: Store, options: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a memory: JSON values, and tensors under "tensors"."""
    pieces: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for i, piece in enumerate(store.pieces):
        entry, own = piece_state(i, piece)
        pieces.append(entry)
        tensors |= own
    return {
        "version": VERSION,
        "options": dict(options),
        "tasks": list(store.tasks),
        "each": list(store.each),
        "shapes": {name: list(shape) for name, shape in store.shapes.items()},
        "pieces": pieces,
        "tensors": tensors,
    }


def from_dict(stored: Mapping[str, Any], params: Mapping[str, Tensor]) -> Store:
    """The store of a state, or a ValueError that says what does not fit the model's parameters or itself."""
    if not isinstance(stored, Mapping):
        raise TypeError(f"a state must be what Memory.state_dict returned, not {type(stored).__name__}")
    if stored.get("version") != VERSION:
        raise ValueError(f"version {stored.get('version')!r} of the state is unknown; this is version {VERSION}")
    if stored.get("keep", "gradients") != "gradients":
        raise ValueError('the state comes from a memory that keeps examples: load it with Memory(keep="examples")')
    try:
        tasks = [whole_number(rows, 1) for rows in stored["tasks"]]
        each = [whole_number(rows, 1) for rows in stored["each"]]
        shapes = {str(name): torch.Size(shape) for name, shape in stored["shapes"].items()}
        _check_model(shapes, params)
        tensors = dict(stored["tensors"])
        pieces = [piece_from_state(i, entry, tensors, params) for i, entry in enumerate(stored["pieces"])]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if tensors:
        raise ValueError(f"the state has tensors that belong to no piece: {sorted(tensors)}")
    if any(piece.stop > sum(tasks) for piece in pieces):
        raise ValueError("the state has more rows than its tasks account for")
    _check_overlap(pieces)
    _check_complete(pieces, sum(tasks))
    if len(each) != len(tasks) or any(rows % k for rows, k in zip(tasks, each, strict=True)):
        raise ValueError("the state has tasks whose rows do not make whole examples")
    return Store(pieces, tasks, shapes, each)


def saved_options(memory: "Memory") -> dict[str, Any]:
    """The options of a memory as JSON values; of functions only that they were there."""
    return {
        "per_task": memory.per_task,
        "outputs": None if callable(memory.outputs) else memory.outputs,
        "logits": memory.logits is not None,
        "params": memory.parameters.wanted,
        "budget": [memory.budget.directions, memory.budget.nbytes],
        "when_full": memory.when_full,
        "chunk_size": memory.chunk_size,
        "statistics": memory.statistics.way,
        "dtype": None if memory.dtype is None else str(memory.dtype).removeprefix("torch."),
    }


def options(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a saved memory, with those given on loading in their place."""
    saved = stored.get("options")
    if not isinstance(saved, Mapping) or not _are_options(saved):
        raise ValueError("the options in the state are malformed")
    if saved["logits"] and given.get("logits") is None:
        raise ValueError("the memory was saved with a logits function: give logits= again")
    if saved["outputs"] is None and given.get("outputs") is None:
        raise ValueError("the memory was saved with a function for its outputs: give outputs= again")
    known = {key: saved[key] for key in ("per_task", "outputs", "params", "chunk_size")}
    dtype = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}.get(saved["dtype"])
    known |= {"when_full": saved["when_full"], "statistics": saved["statistics"]}
    known["keep"] = "examples" if stored.get("keep") == "examples" else "gradients"
    return {**known, "dtype": dtype, "budget": Budget(*saved["budget"]), **given}


def _are_options(saved: Mapping[str, Any]) -> bool:
    """Whether the options are all there and of the right types; `Memory` checks their values."""
    params, budget = saved.get("params"), saved.get("budget")
    return (
        {"per_task", "outputs", "logits", "params", "budget", "chunk_size", "when_full", "statistics", "dtype"}
        <= set(saved)
        and (params is None or (isinstance(params, list) and all(isinstance(p, str) for p in params)))
        and (isinstance(budget, list) and len(budget) == 2)
        and all(limit is None or is_whole(limit) for limit in budget)
        and saved["dtype"] in (None, *(str(dtype).removeprefix("torch.") for dtype in DTYPES))
    )


def write(stored: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a safetensors file; a reader of the path sees the old file or the new one, whole."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder; give the path of a file, such as {path / 'memory.safetensors'}")
    document = {key: value for key, value in stored.items() if key != "tensors"}
    tensor_files.write(path, FORMAT, document, stored["tensors"])


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file, not yet checked against a model."""
    name = os.fspath(path)
    if Path(path).is_dir():
        raise IsADirectoryError(f"{name}: a folder; give the path of a file that Memory.save wrote")
    if not Path(path).exists():
        raise FileNotFoundError(f"{name}: no such file")
    try:
        document, tensors = tensor_files.read(Path(path), FORMAT)
    except ValueError as error:
        raise ValueError(f"{name}: {brief(error)}") from error
    del document[tensor_files.DIGEST]
    return {**document, "tensors": tensors}


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
    """A row and parameter must not be stored twice: it would count twice."""
    ends: dict[str, int] = {}
    for name, start, stop in sorted((name, p.start, p.stop) for p in pieces for name in p.names):
        if start < ends.get(name, 0):
            raise ValueError(f"the state stores rows of {name} twice")
        ends[name] = stop


def _check_complete(pieces: list[Piece], n: int) -> None:
    """Each row must be stored for some parameter: one that is not would count and protect nothing."""
    end = 0
    for start, stop in sorted((piece.start, piece.stop) for piece in pieces):
        if start > end:
            break
        end = max(end, stop)
    if end < n:
        raise ValueError(f"the state claims {n:,} rows, but row {end:,} is stored for no parameter")
