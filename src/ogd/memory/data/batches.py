"""Read inputs x and labels y from a batch of any usual kind.

(x, y)                     a pair
(x, y, task)               as in Avalanche: y and all that follows are whole numbers, one per example
(a, b, …, y)               several inputs: only the last part is whole numbers, one per example
{"input_ids": …, "labels": y}     as in Hugging Face; also "label"
x, (x,), {"input_ids": …}  no labels: y is None

Labels may also be a list of numbers, or a NumPy array.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ogd.memory.data.labels import are_labels, as_labels
from ogd.memory.data.packed_texts import without_ends

Chunk = tuple[Any, Any]  # x and y, batch first; x may be a tensor or tuples, lists and dicts of tensors
LABELS = ("labels", "label")
CHUNK_SIZE = 256  # the largest number of examples that go through a model at a time
ANY_LOSS = "for boxes, graphs or packed texts use ogd.ExampleMemory(model, loss=…) (docs/any-loss.md)"
CHUNK_BYTES = 2**28  # the most memory that their saved activations, gradients or outputs may take


def as_pair(batch: Any) -> Chunk:
    """Return a batch as (x, y); y is None if it has no labels.

    Examples:
        >>> import torch
        >>> x, y = as_pair({"input_ids": torch.zeros(3, 5), "labels": torch.tensor([0, 1, 0])})
        >>> list(x), y
        (['input_ids'], tensor([0, 1, 0]))
        >>> as_pair((torch.zeros(2, 1), [3, 4]))[1]
        tensor([3, 4])
    """
    if isinstance(batch, Mapping):
        x, y = _of_mapping(batch)
    elif isinstance(batch, tuple | list) and batch:
        x, y = _of_parts(batch)
    else:
        x, y = batch, None
    x = dict(x) if isinstance(x, Mapping) else x  # pytree does not know UserDict, the class of Hugging Face's batches
    y = as_labels(y)
    if any(isinstance(leaf, np.ndarray) for leaf in pytree.tree_leaves((x, y))):
        raise TypeError(f"data holds NumPy arrays ({describe(batch)}): give tensors, torch.from_numpy(array)")
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(x)):
        raise ValueError(
            f"data holds no tensor as input, but {describe(batch)}: give tensors, or tuples, lists and dicts of them, "
            f"as pairs (x, y) or dictionaries with the key 'labels'; {ANY_LOSS}"
        )
    return x, y


def length(tree: Any) -> int:
    """Return the number of examples in a batch, the common first axis of all its tensors."""
    shapes = sorted({tuple(t.shape) for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)})
    if not shapes:
        raise ValueError("data holds no tensor: examples must be tensors, or tuples, lists and dicts of them")
    if () in shapes or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(f"the tensors of a batch must share their first axis; found shapes {shapes}: {ANY_LOSS}")
    return int(shapes[0][0])


def take(tree: Any, rows: Any) -> Any:
    """Return the given rows of every tensor of a batch."""
    return pytree.tree_map(lambda t: t[rows] if isinstance(t, Tensor) else t, tree)


def to_device(tree: Any, device: torch.device) -> Any:
    """Return the batch with every tensor on a device."""
    return pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, tree)


def clone_tensors(tree: Any) -> Any:
    """Return a copy of the batch, for a model that may change its inputs in place."""
    return pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def describe(batch: Any) -> str:
    """Describe a batch in words, for messages.

    Examples:
        >>> import torch
        >>> describe([torch.zeros(3, 5), "a"]), describe({"x": None})
        ('a list of 2: float32 (3, 5), str', 'a dict with the keys x')
    """
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with the keys {', '.join(map(str, batch))}"
    if isinstance(batch, tuple | list):
        parts = [describe(p) if isinstance(p, Tensor) else type(p).__name__ for p in batch[:6]]
        return f"a {type(batch).__name__} of {len(batch)}: {', '.join(parts)}{', …' if len(batch) > 6 else ''}"
    return type(batch).__name__


def _of_mapping(batch: Mapping[str, Any]) -> Chunk:
    found = [key for key in LABELS if key in batch]
    if len(found) > 1:
        raise ValueError(f"a batch is {describe(batch)}: leave one of {' and '.join(found)} out")
    x = {key: value for key, value in batch.items() if key not in found}
    return without_ends(x), batch[found[0]] if found else None


def _of_parts(batch: Sequence[Any]) -> Chunk:
    n = len(batch)
    if n <= 2:
        return batch[0], batch[1] if n == 2 else None
    batch = [batch[0], *map(as_labels, batch[1:])]
    labels = [i for i in range(1, n) if are_labels(batch[i])]
    if labels == list(range(1, n)):
        return batch[0], batch[1]
    if labels in ([], [n - 1]):
        return tuple(batch[: n - len(labels)]), batch[-1] if labels else None
    raise ValueError(
        f"a batch is {describe(batch)}: which part holds the labels is ambiguous; give pairs (x, y), where x may "
        "be a tuple or dict of inputs, or dictionaries with the key 'labels' (a DataLoader's collate_fn can make them)"
    )


def shapes(example: Chunk) -> list[Any]:
    """Return the shapes of a batch's tensors."""
    return [t.shape for t in pytree.tree_leaves(example) if isinstance(t, Tensor)]


def concatenate(examples: list[Chunk]) -> Chunk:
    """Return several batches as one."""
    leaves = [pytree.tree_flatten(e)[0] for e in examples]
    spec = pytree.tree_flatten(examples[0])[1]
    merged = [torch.cat(ts) if isinstance(ts[0], Tensor) else ts[0] for ts in zip(*leaves, strict=True)]
    x, y = pytree.tree_unflatten(merged, spec)
    return x, y


@dataclass(frozen=True)
class TensorSlot:
    """The place of a tensor in an input."""

    number: int


def without_tensors(x: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of an input, and the input with a slot in place of each.

    Examples:
        >>> without_tensors({"a": torch.ones(1), "b": "text"})
        ([tensor([1.])], {'a': TensorSlot(number=0), 'b': 'text'})
    """
    tensors: list[Tensor] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return TensorSlot(len(tensors) - 1)

    return tensors, pytree.tree_map(place, x)


def with_tensors(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the input with the tensors in their slots."""
    if isinstance(structure, TensorSlot):
        return tensors[structure.number]
    return pytree.tree_map(lambda leaf: tensors[leaf.number] if isinstance(leaf, TensorSlot) else leaf, structure)


def is_batch(data: object) -> bool:
    """Return whether data is one batch of tensors, not a collection of examples or batches."""
    if isinstance(data, Mapping):
        values = [as_labels(value) if key in LABELS else value for key, value in data.items()]
        return any(key in data for key in LABELS) and all(isinstance(value, Tensor) for value in values)
    if isinstance(data, tuple | list) and len(data) == 2:
        return isinstance(data, tuple) or not all(isinstance(part, tuple | list | Mapping) for part in data)
    if not isinstance(data, tuple | list) or not data or not isinstance(data[0], Tensor):
        return False
    parts = [data[0], *map(as_labels, data[1:])]
    if not all(isinstance(part, Tensor) for part in parts):
        return False
    shapes, axes = {part.shape for part in parts}, {part.shape[:1] for part in parts}
    return isinstance(data, tuple) or (len(axes) == 1 < len(shapes))  # tensors of one shape are inputs without labels


def are_batches(data: Sequence[Any]) -> bool:
    """Return whether the elements of a list are batches, not examples, or raise if both are possible.

    A batch has inputs of two or more axes, and a whole number as the label of each row. An example has one label, or
    labels that are not one per row.

    Examples:
        >>> import torch
        >>> x, y = torch.zeros(6, 2, 5), torch.zeros(6, 2, dtype=torch.long)
        >>> batches, examples = list(zip(x, y)), list(zip(x[0], y[0]))
        >>> are_batches(batches), are_batches(examples)
        (True, False)
    """
    first = _rows(data[0]) if data else None
    if first is None:
        return False
    if first.labelled and any(rows is not None and rows.n > 1 for rows in map(_rows, data)):
        return True
    raise ValueError(
        f"data is a {type(data).__name__} whose elements may be examples or batches, the first being "
        f"{describe(data[0])}: give DataLoader(data, batch_size=32) if they are examples, DataLoader(data, "
        "batch_size=None) if they are batches"
    )


def is_indexed(data: object) -> bool:
    """Return whether data is a sequence of examples, although it is no Dataset."""
    has_keys = isinstance(data, Mapping | str | bytes) or hasattr(data, "keys")  # a graph of PyTorch Geometric
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not has_keys


class _Rows(NamedTuple):
    n: int
    labelled: bool  # whether each row has one whole number


def _rows(element: Any) -> _Rows | None:
    """Return the rows of an element that may be a batch; None if it can only be an example."""
    if isinstance(element, Mapping):
        x, labels = {k: v for k, v in element.items() if k not in LABELS}, [element[k] for k in LABELS if k in element]
    elif isinstance(element, tuple | list) and element:
        x, labels = element[0], [part for part in element[1:] if part is not None]
    else:
        x, labels = element, []
    labels = list(map(as_labels, labels))
    if not all(getattr(label, "ndim", 0) or isinstance(label, tuple | list) for label in labels):
        return None  # a single label
    inputs = _tensors(dict(x) if isinstance(x, Mapping) else x)
    axes = {tuple(t.shape[:1]) for t in (*inputs, *_tensors(labels))}
    if len(axes) != 1 or max((t.ndim for t in inputs), default=0) < 2:
        return None
    return _Rows(inputs[0].shape[0], any(map(are_labels, labels)))


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(tree) if hasattr(leaf, "shape")]
