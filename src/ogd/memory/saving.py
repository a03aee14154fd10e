"""Write and read the safetensors file of a memory. Everything that is read is checked. A saved memory contains:

    version     the version of this format
    kind        "gradients" or "examples"
    options     the options of the constructor; for a function, only whether there was one
    buffers     the names of the modules whose buffers are frozen
    weights     a fingerprint of the model's weights, to warn if the memory is loaded for other weights
    progress    how far each protection had come, so that training continues alike
    tensors     the stored tensors

`projection/store_state.py` adds fields for stored gradients, `examples/examples_state.py` for kept examples.
In the file everything except the tensors is one JSON document in the metadata. K is not stored.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ogd import tensor_files
from ogd.checks import is_whole
from ogd.json_files import shorten
from ogd.memory.blocks.block import DTYPES
from ogd.memory.data.budget import Budget

FORMAT = "ogd.memory"  # the key of the metadata
VERSION = 4
_CLASSES = {"gradients": "GradientMemory", "examples": "ExampleMemory"}  # by kind
_OF_CONTENTS: dict[str, type] = {
    "weights": dict,
    "shapes": dict,
    "tensors": dict,
    "pieces": list,
    "groups": list,
    "items": list,
}
_OPTIONS = {"per_task", "logits", "params", "budget", "shrink", "freeze_buffers"}
_FUNCTIONS = {"loss", "collate", "outputs"}  # only whether they were given; of a memory with loss= only
_DTYPES = {tensor_files.dtype_name(dtype): dtype for dtype in DTYPES}


def header(kind: str, options: Mapping[str, Any], buffers: set[str], weights: Any) -> dict[str, Any]:
    """Return the fields of a state that both kinds of memory have."""
    return {"version": VERSION, "kind": kind, "options": dict(options), "buffers": sorted(buffers), "weights": weights}


def as_leaves(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state in which all that depends on the contents of the memory is in tuples.

    torch.distributed.checkpoint loads into the state of a new memory. It descends into dicts and lists, and would look
    there for what an empty memory has; a tuple is one value to it.
    """
    found = {key: value for key in _OF_CONTENTS if (value := state.get(key)) is not None}
    leaves = {key: tuple(value.items() if isinstance(value, Mapping) else value) for key, value in found.items()}
    return {**state, **leaves}


def from_leaves(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the dicts and lists that it had before `as_leaves`."""
    tables = {key: stored[key] for key in _OF_CONTENTS if isinstance(stored.get(key), tuple)}
    try:
        return {**stored, **{key: _OF_CONTENTS[key](value) for key, value in tables.items()}}
    except (TypeError, ValueError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error


def check_header(stored: object, *kinds: str) -> None:
    """Raise unless a state comes from a memory of one of these kinds, and has this version."""
    if not isinstance(stored, Mapping):
        raise TypeError(f"a state must be the result of state_dict, not {type(stored).__name__}")
    if stored.get("version") != VERSION:
        raise ValueError(f"version {stored.get('version')!r} of the state is unknown; this is version {VERSION}")
    if stored.get("kind") not in list(kinds):
        found = _CLASSES.get(str(stored.get("kind")), f"unknown kind {stored.get('kind')!r}")
        raise ValueError(f"the state belongs to another class ({found}): load it with ogd.load(path, model)")


def options(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a saved memory, updated by those that `load` got."""
    saved = stored.get("options")
    gradients = stored.get("kind") == "gradients"
    if not isinstance(saved, Mapping) or not _are_options(saved, gradients):
        raise ValueError("the options in the state are malformed")
    if saved["logits"] and given.get("logits") is None:
        raise ValueError("the memory was saved with a logits function: give logits= again")
    for name in _FUNCTIONS if not gradients else ():
        if saved.get(name) and given.get(name) is None:
            raise ValueError(f"the memory was saved with a function {name}=: give {name}= again")
    if gradients and saved["outputs"] is None and given.get("outputs") is None:
        raise ValueError("the memory was saved with a function for its outputs: give outputs= again")
    found = {key: saved[key] for key in ("per_task", "params", "shrink", "freeze_buffers")}
    found["budget"] = Budget(*saved["budget"])
    if not gradients:
        found["shift_labels"] = saved["shift_labels"]
    if gradients:
        found |= {key: saved[key] for key in ("outputs", "softness", "chunk_size")}
        found["dtype"] = _DTYPES.get(saved["dtype"])
    return found | dict(given)


def _are_options(saved: Mapping[str, Any], gradients: bool) -> bool:
    """Return whether all options are there and have the right types; the memory checks their values."""
    params, budget = saved.get("params"), saved.get("budget")
    names = set(saved) if gradients else set(saved) - _FUNCTIONS
    return (
        _OPTIONS | ({"outputs", "softness", "chunk_size", "dtype"} if gradients else {"shift_labels"}) == names
        and (params is None or (isinstance(params, list) and all(isinstance(p, str) for p in params)))
        and (isinstance(budget, list) and len(budget) == 2)
        and all(limit is None or is_whole(limit) for limit in budget)
        and saved.get("dtype") in (None, *_DTYPES)
    )


def write(stored: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a safetensors file; a reader of the path sees the complete old file or the complete new one."""
    path, stored = Path(path), from_leaves(stored)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder; give the path of a file, such as {path / 'memory.safetensors'}")
    document = {key: value for key, value in stored.items() if key != "tensors"}
    tensor_files.write(path, FORMAT, document, stored["tensors"])


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state in a file, not yet checked against a model."""
    name = os.fspath(path)
    if Path(path).is_dir():
        raise IsADirectoryError(f"{name}: a folder; give the path of a file that a memory's save wrote")
    if not Path(path).exists():
        raise FileNotFoundError(f"{name}: no such file")
    try:
        document, tensors = tensor_files.read(Path(path), FORMAT)
    except ValueError as error:
        raise ValueError(f"{name}: {shorten(error)}") from error
    del document[tensor_files.DIGEST]
    return {**document, "tensors": tensors}
