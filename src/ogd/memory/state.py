"""A memory as a dictionary, and as a safetensors file. Nothing read is trusted: all of it is checked.

The file holds the factors of each piece as `<piece>.A`, `<piece>.D`, `<piece>.index` or `<piece>.G`, and one JSON
document in its metadata for the rest. K is not stored: it follows from them.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ogd.checks import is_whole
from ogd.files import replacing
from ogd.memory.algebra.blocks import Block, Dense, Factored
from ogd.memory.algebra.sparse import Sparse
from ogd.memory.algebra.store import Piece, Store
from ogd.memory.budget import Budget
from ogd.memory.model.names import bare

if TYPE_CHECKING:
    from ogd.memory.memory import Memory

FORMAT = "ogd.memory"  # the one key of the metadata: with two, a file would not be the same twice
VERSION = 1
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def to_dict(store: Store, options: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a memory: JSON values, and tensors under "tensors"."""
    pieces: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for i, piece in enumerate(store.pieces):
        block = piece.block
        entry: dict[str, Any] = {"names": list(piece.names), "start": piece.start, "rows": block.n}
        if isinstance(block, Factored):
            entry |= {"bias": block.bias, "T": block.T, "out_first": block.out_first}
        if isinstance(block, Sparse):
            entry |= {"sparse": True, "T": block.T}
        pieces.append(entry)
        tensors |= {f"{i}.{key}": t.detach() for key, t in block.tensors().items()}
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
        raise ValueError('the state is of a memory that keeps examples: load it with Memory(keep="examples")')
    try:
        tasks = [_whole(rows, 1) for rows in stored["tasks"]]
        each = [_whole(rows, 1) for rows in stored.get("each", [1] * len(tasks))]
        shapes = {str(name): torch.Size(shape) for name, shape in stored["shapes"].items()}
        names = _plain(shapes, params)
        shapes = {names[name]: shape for name, shape in shapes.items()}
        _check_model(shapes, params)
        tensors = dict(stored["tensors"])
        pieces = [_piece(i, entry, tensors, shapes, params, names) for i, entry in enumerate(stored["pieces"])]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if tensors:
        raise ValueError(f"the state has tensors that belong to no piece: {sorted(tensors)}")
    if any(piece.stop > sum(tasks) for piece in pieces):
        raise ValueError("the state has more rows than its tasks")
    _check_overlap(pieces)
    _check_complete(pieces, sum(tasks))
    if len(each) != len(tasks) or any(rows % k for rows, k in zip(tasks, each, strict=True)):
        raise ValueError("the state has tasks that are no whole number of examples")
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
    # files of version 0.1 say none of these
    dtype = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES}.get(saved.get("dtype", ""))
    known |= {"when_full": saved.get("when_full", "raise"), "statistics": saved.get("statistics", "keep")}
    known["keep"] = "examples" if stored.get("keep") == "examples" else "gradients"
    return {**known, "dtype": dtype, "budget": Budget(*saved["budget"]), **given}


def _are_options(saved: Mapping[str, Any]) -> bool:
    """Whether the options are all there and of the right types; `Memory` checks their values."""
    params, budget = saved.get("params"), saved.get("budget")
    return (
        {"per_task", "outputs", "logits", "params", "budget", "chunk_size"} <= set(saved)
        and (params is None or (isinstance(params, list) and all(isinstance(p, str) for p in params)))
        and (isinstance(budget, list) and len(budget) == 2)
        and all(limit is None or is_whole(limit) for limit in budget)
        and saved.get("dtype") in (None, *(str(dtype).removeprefix("torch.") for dtype in _DTYPES))
    )


def write(stored: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a safetensors file; a reader of the path sees the old file or the new one, whole."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder; give the path of a file, such as {path / 'memory.safetensors'}")
    tensors = {key: t.contiguous().cpu() for key, t in stored["tensors"].items()}
    document = json.dumps({key: value for key, value in stored.items() if key != "tensors"})
    with replacing(path) as temporary:
        try:
            save_file(tensors, temporary, {FORMAT: document})
        except SafetensorError as error:  # how it tells of a full disk
            raise OSError(f"it could not be written ({error})") from error


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file, not yet checked against a model."""
    name = os.fspath(path)
    if Path(path).is_dir():
        raise IsADirectoryError(f"{name}: a folder; give the path of a file that Memory.save wrote")
    if not Path(path).is_file():
        raise FileNotFoundError(f"{name}: no such file")
    try:
        with safe_open(name, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{name}: not a safetensors file, or a damaged one ({error})") from error
    if FORMAT not in metadata:
        raise ValueError(f"{name}: a safetensors file, but not one of ogd.Memory.save")
    try:
        document = json.loads(metadata[FORMAT])
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: its metadata is damaged ({error!r})") from error
    if not isinstance(document, dict):
        raise ValueError(f"{name}: its metadata is damaged (not an object)")
    return {**document, "tensors": tensors}


def _piece(
    i: int,
    entry: Mapping[str, Any],
    tensors: dict[str, Tensor],
    shapes: Mapping[str, torch.Size],
    params: Mapping[str, Tensor],
    plain: Mapping[str, str],
) -> Piece:
    names = tuple(plain[name] for name in entry["names"])
    where = f"piece {i} ({', '.join(names)})"
    sizes = [shapes[name] for name in names]
    rows, start = _whole(entry["rows"], 1), _whole(entry["start"], 0)
    block: Block
    if "sparse" in entry:
        T, index, D = _whole(entry["T"], 1), tensors.pop(f"{i}.index"), tensors.pop(f"{i}.D")
        V = _rows_read(where, index, rows * T, sizes[0])
        block, wanted = Sparse(index, D, V, T), [(D, (rows * T, sizes[0][1:].numel()))]
        fits = len(names) == 1
    elif "T" in entry:
        T, bias, out_first = _whole(entry["T"], 1), bool(entry["bias"]), bool(entry["out_first"])
        A, D = tensors.pop(f"{i}.A"), tensors.pop(f"{i}.D")
        block = Factored(A, D, bias=bias, T=T, out_first=out_first)
        out, into = (sizes[0][0], sizes[0][1:].numel()) if out_first else (sizes[0][-1], sizes[0][:-1].numel())
        wanted = [(A, (rows * T, into)), (D, (rows * T, out))]
        fits = len(names) == 1 + bias and len(sizes[0]) > 1 and (not bias or sizes[1] == (out,))
    else:
        G = tensors.pop(f"{i}.G")
        block, wanted, fits = Dense(G), [(G, (rows, sizes[0].numel()))], len(names) == 1
    for tensor, shape in wanted:
        if not fits or tensor.shape != shape:
            raise ValueError(f"{where}: a tensor of shape {tuple(tensor.shape)} where {shape} belongs")
        if tensor.dtype not in _DTYPES or not tensor.isfinite().all():
            raise ValueError(f"{where}: holds values that are not finite floating-point numbers")
    p = params[names[0]]
    return Piece(names, block.to(p.device, wanted[0][0].dtype), start)


def _rows_read(where: str, index: Tensor, count: int, size: torch.Size) -> int:
    """How many rows the table has that a sparse piece reads from; what it reads must be rows of it."""
    V = size[0] if len(size) == 2 else 0
    if index.dtype != torch.int32 or index.shape != (count,) or not bool(((index >= 0) & (index < V)).all()):
        raise ValueError(f"{where}: its index does not hold {count} rows of a table of {V}")
    return V


def _plain(names: Iterable[str], params: Mapping[str, Tensor]) -> dict[str, str]:
    """The model's own names for the stored ones, which 0.1.0 took as torch.compile and DDP gave them."""
    known: dict[str, list[str]] = {}
    for name in params:
        known.setdefault(bare(name), []).append(name)
    found = {name: [name] if name in params else known.get(bare(name), []) for name in names}
    return {name: own[0] if len(own) == 1 else name for name, own in found.items()}


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
        raise ValueError("the memory is of another model: " + "; ".join(parts))


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


def _whole(value: Any, least: int) -> int:
    if not is_whole(value, least):
        raise ValueError(f"the state holds {value!r} where a whole number of at least {least} belongs")
    return int(value)
