"""Kept examples as a dictionary of JSON values and tensors, and back. Nothing read is trusted: all of it is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ogd.checks import is_whole
from ogd.memory.rehearsal.examples import Examples, Lot, Place, Task
from ogd.memory.rehearsal.loss import check_classes
from ogd.memory.rehearsal.packed import COLOURS, Packed
from ogd.memory.state import VERSION, saved_options
from ogd.tensor_files import is_finite

if TYPE_CHECKING:
    from ogd.memory.rehearsal.memory import ExampleMemory

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
DEEP = 20  # levels of tuples, lists and dicts in an input


def to_dict(memory: "ExampleMemory") -> dict[str, Any]:
    """The state of a memory of examples."""
    examples = memory.examples
    if any(task.logits is not None for task in examples.tasks):
        raise ValueError(
            "a task was remembered with a logits function of its own, and a function cannot be saved: give the memory "
            "one for all tasks, Memory(logits=…), and put what tells the tasks apart into x"
        )
    tensors: dict[str, Tensor] = {}
    lots = [_lot_entry(f"{i}", lot, tensors) for i, lot in enumerate(examples.lots)]
    return {
        "version": VERSION,
        "keep": "examples",
        "options": saved_options(memory),
        "classes": [None if task.classes is None else list(task.classes) for task in examples.tasks],
        "seed": memory.seed,
        "draws": memory.draws,
        "since": memory.since,
        "observed": memory.observed,
        "lots": lots,
        "tensors": tensors,
    }


@dataclass(frozen=True, eq=False)
class Saved:
    """What a state holds: the examples, and where among the batches drawn from them training was."""

    examples: Examples
    seed: int
    draws: int
    since: list[int]
    observed: int


def from_dict(stored: Mapping[str, Any]) -> Saved:
    """What a state holds, or a ValueError that says what is wrong with it."""
    if not isinstance(stored, Mapping):
        raise TypeError(f"a state must be what Memory.state_dict returned, not {type(stored).__name__}")
    if stored.get("version") != VERSION:
        raise ValueError(f"version {stored.get('version')!r} of the state is unknown; this is version {VERSION}")
    if stored.get("keep") != "examples":
        raise ValueError('the state comes from a memory that keeps gradients: load it with Memory(keep="gradients")')
    try:
        tasks = tuple(Task(_classes(classes)) for classes in stored["classes"])
        tensors = dict(stored["tensors"])
        if not all(isinstance(t, Tensor) and t.layout == torch.strided and not t.is_meta for t in tensors.values()):
            raise ValueError("the state holds something else where tensors belong")
        lots = tuple(_lot(f"{i}", entry, tensors, tasks) for i, entry in enumerate(stored["lots"]))
        numbers = _whole(stored["seed"]), _whole(stored["draws"]), [_whole(n) for n in stored["since"]]
        observed = _whole(stored["observed"])
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if tensors:
        raise ValueError(f"the state has tensors that belong to nothing: {sorted(tensors)}")
    examples = Examples(lots, tasks)
    if not all(examples.counts):
        raise ValueError("the state has a task without examples")
    if observed and (len(tasks) > 1 or observed < len(examples)):
        raise ValueError("the state claims to hold a stream, but its examples belong to tasks")
    return Saved(examples, *numbers, observed)


def _lot_entry(i: str, lot: Lot, tensors: dict[str, Tensor]) -> dict[str, Any]:
    leaves = [_packed_entry(f"{i}.x{j}", leaf, tensors) for j, leaf in enumerate(lot.leaves)]
    tensors |= {f"{i}.z": lot.z, f"{i}.task": lot.task}
    return {
        "x": _described(lot.structure),
        "leaves": leaves,
        "y": None if lot.y is None else _packed_entry(f"{i}.y", lot.y, tensors),
    }


def _lot(i: str, entry: Mapping[str, Any], tensors: dict[str, Tensor], tasks: Sequence[Task]) -> Lot:
    z, task = tensors.pop(f"{i}.z"), tensors.pop(f"{i}.task")
    n = len(z)
    if not n or z.dtype not in _DTYPES.values() or not z.is_floating_point() or not is_finite(z):
        raise ValueError(f"lot {i}: its outputs are not finite numbers")
    if task.dtype != torch.long or task.shape != (n,) or not bool(((task >= 0) & (task < len(tasks))).all()):
        raise ValueError(f"lot {i}: its tasks are not {n} numbers below {len(tasks)}")
    leaves = tuple(_packed(f"{i}.x{j}", e, tensors, n) for j, e in enumerate(entry["leaves"]))
    y = None if entry["y"] is None else _packed(f"{i}.y", entry["y"], tensors, n)
    for t in task.unique().tolist():
        mine = task == t
        check_classes(z[mine], None if y is None else y[mine.nonzero().flatten()], tasks[t].classes)
    structure = _built(entry["x"])
    places = [leaf.number for leaf in pytree.tree_leaves(structure) if isinstance(leaf, Place)]
    if places != list(range(len(leaves))):
        raise ValueError(f"lot {i}: its inputs do not have {len(leaves)} tensors, each in its place")
    return Lot(leaves, structure, y, z, task, None)


def _packed_entry(key: str, leaf: Packed, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if leaf.dtype not in _DTYPES.values():
        raise ValueError(f"inputs or labels are of {leaf.dtype}, which cannot be saved")
    tensors[key] = leaf.data
    if leaf.palette is not None:
        tensors[f"{key}.palette"] = leaf.palette
    return {"dtype": str(leaf.dtype).removeprefix("torch."), "palette": leaf.palette is not None}


def _packed(key: str, entry: Mapping[str, Any], tensors: dict[str, Tensor], n: int) -> Packed:
    data, dtype = tensors.pop(key), _DTYPES[entry["dtype"]]
    palette = tensors.pop(f"{key}.palette") if entry["palette"] is True else None
    if len(data) != n:
        raise ValueError(f"{key}: {len(data)} examples where there are {n} outputs")
    if palette is None:
        if not _holds(data.dtype, dtype):
            raise ValueError(f"{key}: {data.dtype} cannot hold {dtype}")
        return Packed(data, dtype)
    fits = palette.ndim == 1 or (palette.ndim == 2 and data.ndim >= 3 and len(palette) == data.shape[1])
    if not fits or palette.dtype != dtype or not palette.isfinite().all() or palette.shape[-1] > COLOURS:
        raise ValueError(f"{key}: its palette does not fit")
    if data.dtype != torch.uint8 or (data.numel() and int(data.max()) >= palette.shape[-1]):
        raise ValueError(f"{key}: has codes that its palette does not have")
    return Packed(data, dtype, palette)


def _holds(smaller: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype may be kept in another, of the same kind and no larger."""
    if smaller not in _DTYPES.values() or torch.bool in (smaller, dtype):
        return smaller == dtype
    return smaller.is_floating_point == dtype.is_floating_point and smaller.itemsize <= dtype.itemsize


def _classes(stored: Any) -> tuple[int, ...] | None:
    classes = None if stored is None else tuple(_whole(value) for value in stored)
    if classes is not None and (not classes or len(set(classes)) < len(classes)):
        raise ValueError(f"{stored!r} are not the classes of a task")
    return classes


def _described(x: Any) -> Any:
    """An input's structure as JSON: tensors by their numbers."""
    if isinstance(x, Place):
        return {"tensor": x.number}
    if isinstance(x, dict) and all(isinstance(key, str) for key in x):
        return {"dict": {key: _described(value) for key, value in x.items()}}
    if type(x) in (tuple, list):
        return {type(x).__name__: [_described(value) for value in x]}
    if x is None or isinstance(x, bool | int | float | str):
        return {"value": x}
    raise ValueError(f"an input holds {type(x).__name__}: only tuples, lists and dicts of tensors can be saved")


def _built(entry: Mapping[str, Any], depth: int = 0) -> Any:
    if depth > DEEP or len(entry) != 1:
        raise ValueError("the structure of the inputs is malformed")
    ((kind, inside),) = entry.items()
    if kind == "tensor":
        return Place(_whole(inside))
    if kind == "dict":
        return {str(key): _built(value, depth + 1) for key, value in inside.items()}
    if kind in ("tuple", "list"):
        parts = [_built(value, depth + 1) for value in inside]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "value" and (inside is None or isinstance(inside, bool | int | float | str)):
        return inside
    raise ValueError("the structure of the inputs is malformed")


def _whole(value: Any) -> int:
    if not is_whole(value, 0):
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)
