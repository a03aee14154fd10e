"""Recognise labels (classes and numbers), and check them against a model's outputs."""

from collections.abc import Sequence
from numbers import Number
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

IGNORED = -100  # a label that does not count, as in torch's cross_entropy


class Shaped(Protocol):
    """Outputs, or anything else with their shape."""

    @property
    def ndim(self) -> int: ...

    @property
    def shape(self) -> torch.Size: ...


def as_labels(y: Any) -> Any:
    """Return an array, or lists of numbers, as a tensor; return other labels unchanged.

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


def are_labels(part: object) -> bool:
    """Return whether a part of a batch may be its labels: whole numbers, one per example."""
    return isinstance(part, Tensor) and part.ndim == 1 and not (part.is_floating_point() or part.is_complex())


def flat_labels(y: Any) -> Any:
    """Return whole-number labels of shape (B, 1), a column of a table, as (B,); return other labels unchanged."""
    column = isinstance(y, Tensor) and y.ndim == 2 and y.shape[1] == 1 and are_labels(y[:, 0])
    return y.squeeze(1) if column else y


def classifies(z: Shaped, y: Tensor) -> bool:
    """Return whether y are the classes of outputs z: whole numbers, one per row of two or more outputs."""
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return whole and z.ndim > 1 and z.shape[-1] > 1 and y.shape == z.shape[:-1]


def look_like_classes(y: Tensor, z: Shaped) -> bool:
    """Return whether y seem to be classes in a form that `classifies` refuses: floats, one-hot, or several per row."""
    if z.ndim < 2 or z.shape[-1] < 2 or classifies(z, y):
        return False
    if not y.is_floating_point():
        return True
    if y.shape in (z.shape[:-1], (*z.shape[:-1], 1)):
        return bool(((y == y.round()) & (y >= 0) & (y < z.shape[-1])).all())
    if y.shape != z.shape:
        return False
    zero, one = y == 0, y == 1
    shares = (y >= 0).all() and ((y.sum(-1) - 1).abs() < 1e-2).all()
    return bool(shares or ((zero | one).all() and zero.any() and one.any()))


def check_labels_fit(z: Shaped, y: Tensor | None, classes: Sequence[int] | None) -> None:
    """Raise unless the classes are among the outputs, and the labels among the classes."""
    if classes is not None and (z.ndim != 2 or max(classes) >= z.shape[1]):
        raise ValueError(
            f"classes={list(classes)} are not among the model's outputs, of shape {('batch', *z.shape[1:])}"
        )
    if y is None or not classifies(z, y):
        return
    shown = y[y != IGNORED]
    if shown.numel() and not 0 <= int(shown.min()) <= int(shown.max()) < z.shape[-1]:
        raise ValueError(
            f"the model has {z.shape[-1]} outputs, and labels are from {int(shown.min())} to {int(shown.max())}: give "
            "classes from 0 on, or no labels, (x, None)"
        )
    strange = [] if classes is None else sorted(set(shown.unique().tolist()) - set(classes))
    if strange:
        raise ValueError(f"labels {strange} are not among classes={list(classes or [])}")


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, Number | np.generic) or (isinstance(leaf, Tensor) and not leaf.ndim)
