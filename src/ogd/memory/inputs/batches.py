"""A batch as it comes → inputs x and labels y.

(x, y)                     a pair
(x, y, task)               Avalanche's: y and all that follows are whole numbers, one per example
(a, b, …, y)               several inputs: only the last is whole numbers, one per example
{"input_ids": …, "labels": y}     Hugging Face's; also "label"
x, (x,), {"input_ids": …}  no labels: y is None

Labels may also be a list of numbers, or a NumPy array.
"""

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Chunk = tuple[Any, Any]  # x and y, batch first; x may be a tensor or tuples, lists and dicts of tensors
LABELS = ("labels", "label")


def as_pair(batch: Any) -> Chunk:
    """A batch as (x, y); y is None where it has no labels.

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
    x = dict(x) if isinstance(x, Mapping) else x  # pytree knows no UserDict, which Hugging Face's batches are
    y = as_labels(y)
    if any(isinstance(leaf, np.ndarray) for leaf in pytree.tree_leaves((x, y))):
        raise TypeError(f"data holds NumPy arrays ({described(batch)}): give tensors, torch.from_numpy(array)")
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(x)):
        raise ValueError(
            f"data holds no tensor as input, but {described(batch)}: give tensors, or tuples, lists and dicts of them, "
            "as pairs (x, y) or dictionaries with the key 'labels'"
        )
    return x, y


def as_labels(y: Any) -> Any:
    """Labels given as an array, or as numbers in lists, as a tensor; other labels as they are.

    Examples:
        >>> as_labels([2, 0]), as_labels(np.array([0.5])), as_labels(["cat"])
        (tensor([2, 0]), tensor([0.5000], dtype=torch.float64), ['cat'])
    """
    numbers = isinstance(y, tuple | list) and all(map(_is_number, pytree.tree_leaves(y)))
    if isinstance(y, Tensor) or not (numbers or hasattr(y, "__array__")):
        return y
    try:
        return torch.tensor(y if numbers else np.asarray(y))
    except (TypeError, ValueError):  # words, or lists of different lengths
        return y


def flat_labels(y: Any) -> Any:
    """Whole-number labels of shape (B, 1), as tables have them, as (B,); others as they are."""
    column = isinstance(y, Tensor) and y.ndim == 2 and y.shape[1] == 1 and are_labels(y[:, 0])
    return y.squeeze(1) if column else y


def length(tree: Any) -> int:
    """The number of examples in a batch: the common first axis of all its tensors."""
    shapes = sorted({tuple(t.shape) for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)})
    if not shapes:
        raise ValueError("data holds no tensor: examples must be tensors, or tuples, lists and dicts of them")
    if () in shapes or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(f"the tensors of a batch must share their first axis; found shapes {shapes}")
    return int(shapes[0][0])


def take(tree: Any, rows: Any) -> Any:
    """The given rows of every tensor of a batch."""
    return pytree.tree_map(lambda t: t[rows] if isinstance(t, Tensor) else t, tree)


def moved(tree: Any, device: torch.device) -> Any:
    """The same batch with every tensor on a device."""
    return pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, tree)


def copied(tree: Any) -> Any:
    """The same batch in memory of its own, for a model that may change its inputs in place."""
    return pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def described(batch: Any) -> str:
    """A batch in words, for messages.

    Examples:
        >>> import torch
        >>> described([torch.zeros(3, 5), "a"]), described({"x": None})
        ('a list of 2: float32 (3, 5), str', 'a dict with the keys x')
    """
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with the keys {', '.join(map(str, batch))}"
    if isinstance(batch, tuple | list):
        parts = [described(p) if isinstance(p, Tensor) else type(p).__name__ for p in batch[:6]]
        return f"a {type(batch).__name__} of {len(batch)}: {', '.join(parts)}{', …' if len(batch) > 6 else ''}"
    return type(batch).__name__


def are_labels(part: object) -> bool:
    """Whether a part of a batch may be its labels: whole numbers, one per example."""
    return isinstance(part, Tensor) and part.ndim == 1 and not (part.is_floating_point() or part.is_complex())


def _of_mapping(batch: Mapping[str, Any]) -> Chunk:
    found = [key for key in LABELS if key in batch]
    if len(found) > 1:
        raise ValueError(f"a batch is {described(batch)}: leave one of {' and '.join(found)} out")
    return {key: value for key, value in batch.items() if key not in found}, batch[found[0]] if found else None


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
        f"a batch is {described(batch)}: which part holds the labels is ambiguous; give pairs (x, y), where x may "
        "be a tuple or dict of inputs, or dictionaries with the key 'labels' (a DataLoader's collate_fn can make them)"
    )


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, Number | np.generic) or (isinstance(leaf, Tensor) and not leaf.ndim)
