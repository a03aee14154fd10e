"""What data is: one batch, a list of batches as list(loader) makes it, or examples as list(dataset) has them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from ogd.memory.inputs.batches import LABELS, are_labels, as_labels, described


def is_batch(data: object) -> bool:
    """Whether data is one batch of tensors, not a collection of examples or batches."""
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
    return isinstance(data, tuple) or (len(axes) == 1 < len(shapes))  # of one shape, they are inputs without labels


def are_batches(data: Sequence[Any]) -> bool:
    """Whether the elements of a list are batches, and not examples; raise where nothing tells.

    A batch has inputs of two or more axes, and a label for each of their rows, one whole number. An example has one
    label, or labels that are not one per row.

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
        f"{described(data[0])}: give DataLoader(data, batch_size=32) if they are examples, DataLoader(data, "
        "batch_size=None) if they are batches"
    )


class _Rows(NamedTuple):
    n: int
    labelled: bool  # each with one whole number


def _rows(element: Any) -> _Rows | None:
    """The rows of what may be a batch; None for what can only be an example."""
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
    """The tensors and arrays in it."""
    return [leaf for leaf in pytree.tree_leaves(tree) if hasattr(leaf, "shape")]


def is_indexed(data: object) -> bool:
    """Whether data is a sequence of examples, without being called a Dataset."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str | bytes)
