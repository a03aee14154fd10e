"""Convert kept examples to JSON values and tensors, and back. Everything that is read is checked.

classes     the logits of each task; None for all
groups      the structure and the dtypes of each group's inputs; its tensors are `<group>.x0`, …, `.y`, `.z` and
            `.task`. Of a distribution over C outputs, `outputs` is C, `.z` the logarithms and `.places` the places

Items have these fields instead:

items       the structure, the dtypes, the task and the loss of each item; its tensors are `<item>.x0`, … and `.z`
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ogd.checks import MOST_WHOLE, whole_number
from ogd.json_files import number
from ogd.memory.data.batches import TensorSlot
from ogd.memory.data.items import Collate
from ogd.memory.data.labels import check_labels_fit
from ogd.memory.examples.kept_examples import Examples, Group, Task
from ogd.memory.examples.kept_items import ArraySlot, Item, Items
from ogd.memory.examples.packing import COLOURS, Packed
from ogd.memory.examples.top_probabilities import Outputs, TopProbabilities
from ogd.tensor_files import dtype_name, is_finite
from ogd.visible_text import is_unicode

_DTYPES = {
    dtype_name(dtype): dtype
    for dtype in (
        torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    )
}  # fmt: skip
MAX_DEPTH = 12  # levels of tuples, lists and dicts in an input


def examples_state(examples: Examples) -> dict[str, Any]:
    """Return examples as JSON values, and tensors under "tensors"."""
    if any(task.logits is not None for task in examples.tasks):
        raise ValueError(
            "a task was remembered with a logits function of its own, and a function cannot be saved: give the memory "
            "one for all tasks, ExampleMemory(logits=…), and put the number of the task into x"
        )
    tensors: dict[str, Tensor] = {}
    groups = [_group_entry(f"{i}", group, tensors) for i, group in enumerate(examples.groups)]
    classes = [None if task.classes is None else list(task.classes) for task in examples.tasks]
    return {"classes": classes, "groups": groups, "tensors": tensors}


def examples_from_state(stored: Mapping[str, Any]) -> Examples:
    """Return the examples of a state, or raise a ValueError that names the damage."""
    try:
        tasks = tuple(Task(_classes(classes)) for classes in stored["classes"])
        tensors = dict(stored["tensors"])
        if not all(isinstance(t, Tensor) and t.layout == torch.strided and not t.is_meta for t in tensors.values()):
            raise ValueError("the state is malformed: tensors must be dense tensors with values")
        groups = tuple(_group(f"{i}", entry, tensors, tasks) for i, entry in enumerate(stored["groups"]))
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if tensors:
        raise ValueError(f"the state has tensors of no group: {sorted(tensors)}")
    examples = Examples(groups, tasks)
    if not all(examples.examples_of_tasks):
        raise ValueError("the state has a task without examples")
    return examples


def items_state(items: Items) -> dict[str, Any]:
    """Return items as JSON values, and tensors under "tensors"."""
    tensors: dict[str, Tensor] = {}
    entries = []
    for i, (item, task) in enumerate(zip(items.items, items.task.tolist(), strict=True)):
        leaves = [_packed_entry(f"{i}.x{j}", packed, tensors) for j, packed in enumerate(item.tensors)]
        if item.z is not None:
            tensors[f"{i}.z"] = item.z
        entry = {"x": _structure_entry(item.structure), "leaves": leaves, "z": item.z is not None}
        entries.append({**entry, "task": task, "loss": item.loss})
    return {"items": entries, "tensors": tensors}


def items_from_state(stored: Mapping[str, Any], collate: Collate) -> Items:
    """Return the items of a state, or raise a ValueError that names the damage."""
    try:
        tensors = dict(stored["tensors"])
        if not all(isinstance(t, Tensor) and t.layout == torch.strided and not t.is_meta for t in tensors.values()):
            raise ValueError("the state is malformed: tensors must be dense tensors with values")
        items = tuple(_item(f"{i}", entry, tensors) for i, entry in enumerate(stored["items"]))
        task = torch.tensor([whole_number(entry["task"]) for entry in stored["items"]], dtype=torch.long)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if tensors:
        raise ValueError(f"the state has tensors of no item: {sorted(tensors)}")
    tasks = task.unique().tolist()
    if tasks != list(range(len(tasks))):
        raise ValueError("the state has a task without items")
    return Items(items, task, (collate,) * len(tasks))


def _item(i: str, entry: Mapping[str, Any], tensors: dict[str, Tensor]) -> Item:
    leaves = tuple(_packed(f"{i}.x{j}", e, tensors, 1) for j, e in enumerate(entry["leaves"]))
    z = tensors.pop(f"{i}.z") if entry["z"] is True else None
    if z is not None and not (z.is_floating_point() and is_finite(z)):
        raise ValueError(f"item {i}: its outputs are not finite numbers")
    return Item(_slotted(f"item {i}: it does", entry["x"], len(leaves)), leaves, z, number(entry["loss"], "a loss"))


def _slotted(what: str, entry: Mapping[str, Any], n: int) -> Any:
    """Return the structure of an input with n tensors, or raise unless each has its place."""
    structure = _structure(entry)
    places = [leaf.number for leaf in pytree.tree_leaves(structure) if isinstance(leaf, TensorSlot)]
    if places != list(range(n)):
        raise ValueError(f"{what} not have {n} tensors, each in its place")
    return structure


def _group_entry(i: str, group: Group, tensors: dict[str, Tensor]) -> dict[str, Any]:
    leaves = [_packed_entry(f"{i}.x{j}", leaf, tensors) for j, leaf in enumerate(group.leaves)]
    tensors[f"{i}.task"] = group.task
    if isinstance(group.z, TopProbabilities):
        tensors |= {f"{i}.z": group.z.logs, f"{i}.places": group.z.shifted_places}
    else:
        tensors[f"{i}.z"] = group.z
    return {
        "outputs": group.z.C if isinstance(group.z, TopProbabilities) else None,
        "x": _structure_entry(group.structure),
        "leaves": leaves,
        "y": None if group.y is None else _packed_entry(f"{i}.y", group.y, tensors),
    }


def _group(i: str, entry: Mapping[str, Any], tensors: dict[str, Tensor], tasks: Sequence[Task]) -> Group:
    z, task = _outputs(i, entry["outputs"], tensors), tensors.pop(f"{i}.task")
    n = len(z)
    if task.dtype != torch.long or task.shape != (n,) or not bool(((task >= 0) & (task < len(tasks))).all()):
        raise ValueError(f"group {i}: invalid task numbers; there must be {n}, each below {len(tasks)}")
    leaves = tuple(_packed(f"{i}.x{j}", e, tensors, n) for j, e in enumerate(entry["leaves"]))
    y = None if entry["y"] is None else _packed(f"{i}.y", entry["y"], tensors, n)
    for t in task.unique().tolist():
        mine = task == t
        check_labels_fit(z[mine], None if y is None else y[mine.nonzero().flatten()], tasks[t].classes)
    structure = _slotted(f"group {i}: its inputs do", entry["x"], len(leaves))
    return Group(leaves, structure, y, z, task, None)


def _outputs(i: str, C: object, tensors: dict[str, Tensor]) -> Outputs:
    z = tensors.pop(f"{i}.z")
    if not len(z) or z.dtype not in _DTYPES.values() or not z.is_floating_point() or not is_finite(z):
        raise ValueError(f"group {i}: its outputs are not finite numbers")
    if C is None:
        return z
    places = tensors.pop(f"{i}.places")
    top = TopProbabilities(z, places, whole_number(C))
    if z.dtype is not torch.float16 or z.ndim < 2 or bool((z > 0).any()):
        raise ValueError(f"group {i}: its outputs are not log-probabilities in float16")
    if places.dtype not in (torch.int16, torch.int32) or places.shape != (*z.shape[:-1], z.shape[-1] - 1):
        raise ValueError(f"group {i}: there must be a place for each log-probability but the last")
    at = top.places.sort(-1).values
    if not 0 < at.shape[-1] < top.C or not bool(((at >= 0) & (at < top.C)).all()) or not bool((at.diff() > 0).all()):
        raise ValueError(f"group {i}: its places are not different outputs among {top.C:,}")
    return top


def _packed_entry(key: str, leaf: Packed, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if leaf.dtype not in _DTYPES.values():
        raise ValueError(f"inputs or labels are of {leaf.dtype}, which cannot be saved")
    tensors[key] = leaf.data
    if leaf.palette is not None:
        tensors[f"{key}.palette"] = leaf.palette
    return {"dtype": dtype_name(leaf.dtype), "palette": leaf.palette is not None}


def _packed(key: str, entry: Mapping[str, Any], tensors: dict[str, Tensor], n: int) -> Packed:
    data, dtype = tensors.pop(key), _DTYPES[entry["dtype"]]
    palette = tensors.pop(f"{key}.palette") if entry["palette"] is True else None
    if len(data) != n:
        raise ValueError(f"{key}: {len(data)} examples where there are {n} outputs")
    if palette is None:
        if not _hooks(data.dtype, dtype):
            raise ValueError(f"{key}: {data.dtype} cannot hold {dtype}")
        return Packed(data, dtype)
    fits = palette.ndim == 1 or (palette.ndim == 2 and data.ndim >= 3 and len(palette) == data.shape[1])
    if not fits or palette.dtype != dtype or not palette.isfinite().all() or palette.shape[-1] > COLOURS:
        raise ValueError(f"{key}: its palette does not fit its numbers")
    if data.dtype != torch.uint8 or (data.numel() and int(data.max()) >= palette.shape[-1]):
        raise ValueError(f"{key}: has codes beyond its palette")
    return Packed(data, dtype, palette)


def _hooks(smaller: torch.dtype, dtype: torch.dtype) -> bool:
    """Return whether numbers of a dtype may be packed into another: the same kind, and no larger."""
    if smaller not in _DTYPES.values() or torch.bool in (smaller, dtype):
        return smaller == dtype
    return smaller.is_floating_point == dtype.is_floating_point and smaller.itemsize <= dtype.itemsize


def _classes(stored: Any) -> tuple[int, ...] | None:
    classes = None if stored is None else tuple(whole_number(value) for value in stored)
    if classes is not None and (not classes or len(set(classes)) < len(classes)):
        raise ValueError(f"{stored!r} are not the classes of a task")
    return classes


def _structure_entry(x: Any, depth: int = 0) -> Any:
    """Return an input's structure as JSON, with tensors by their numbers."""
    if depth > MAX_DEPTH:
        raise ValueError(f"an input is nested more than {MAX_DEPTH} levels deep, and cannot be saved")
    if isinstance(x, TensorSlot):
        return {"array" if isinstance(x, ArraySlot) else "tensor": x.number}
    if isinstance(x, dict) and all(isinstance(key, str) and is_unicode(key) for key in x):
        return {"dict": {key: _structure_entry(value, depth + 1) for key, value in x.items()}}
    if type(x) in (tuple, list):
        return {type(x).__name__: [_structure_entry(value, depth + 1) for value in x]}
    if x is None or isinstance(x, bool) or _is_json(x):
        return {"value": x}
    what = f"{x!r:.40}" if isinstance(x, int | float | str) else type(x).__name__
    what = f"a {x.layout} tensor" if type(x) is Tensor else what  # sparse
    raise ValueError(
        f"an input holds {what}: only tuples, lists and dicts (with texts as keys) of tensors, arrays, finite numbers "
        "and texts can be saved; let the data set return these, and make other objects in collate="
    )


def _is_json(x: Any) -> bool:
    """Return whether a file gives the number or text back as it is."""
    if type(x) is str:
        return is_unicode(x)
    return (type(x) is int and abs(x) <= MOST_WHOLE) or (type(x) is float and math.isfinite(x))


def _structure(entry: Mapping[str, Any], depth: int = 0) -> Any:
    if depth > MAX_DEPTH or len(entry) != 1:
        raise ValueError("the structure of the inputs is malformed")
    ((kind, inside),) = entry.items()
    if kind in ("tensor", "array"):
        return (ArraySlot if kind == "array" else TensorSlot)(whole_number(inside))
    if kind == "dict":
        return {str(key): _structure(value, depth + 1) for key, value in inside.items()}
    if kind in ("tuple", "list"):
        parts = [_structure(value, depth + 1) for value in inside]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "value" and (inside is None or isinstance(inside, bool | int | float | str)):
        return inside
    raise ValueError("the structure of the inputs is malformed")
