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


def without_class_axis(z: Shaped, y: Tensor) -> Tensor:
    """Return classes of pixels with an axis of length 1 in place of the classes, (B, 1, H, W), as (B, H, W).

    Examples:
        >>> z, y = torch.zeros(2, 3, 5, 4), torch.zeros(2, 1, 5, 4, dtype=torch.long)
        >>> without_class_axis(z, y).shape
        torch.Size([2, 5, 4])
    """
    if y.ndim < 3 or y.ndim != z.ndim or y.shape[1] != 1 or class_axis(z, y[:, 0]) is None:
        return y
    return y[:, 0]


def classifies(z: Shaped, y: Tensor) -> bool:
    """Return whether y are the classes of outputs z: whole numbers, one per row of two or more outputs."""
    return class_axis(z, y) is not None


def class_axis(z: Shaped, y: Tensor) -> int | None:
    """Return the axis of z that counts the classes of labels y; None if y are not classes.

    It is the last axis, or axis 1 as in torch's `cross_entropy` of images, (B, C, H, W). Where the shapes allow both,
    it is axis 1 if there are four axes or more.

    Examples:
        >>> y = torch.zeros(2, 5, 5, dtype=torch.long)
        >>> class_axis(torch.zeros(2, 3, 5, 5), y), class_axis(torch.zeros(2, 5, 5, 3), y), class_axis(y, y)
        (1, -1, None)
    """
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or z.ndim < 2:
        return None
    for axis in (1, -1) if z.ndim > 3 else (-1, 1):
        if z.shape[axis] > 1 and y.shape == _without(z.shape, axis):
            return axis
    return None


def _without(shape: torch.Size, axis: int) -> torch.Size:
    return torch.Size(n for i, n in enumerate(shape) if i != axis % len(shape))


def is_binary(z: Shaped, y: Tensor) -> bool:
    """Return whether y are labels that `binary_labels` has recognised, and z one logit for each."""
    one = z.ndim == 1 or 1 in (z.shape[1], z.shape[-1])
    return one and y.dtype == torch.bool and y.shape in (z.shape, z.shape[:-1], z.shape[:1] + z.shape[2:])


def binary_labels(z: Tensor, y: Tensor) -> Tensor:
    """Return labels 0 and 1 of one logit each as False and True, and other labels unchanged.

    The labels of a regression, or of a model that ends with a sigmoid, may be 0 and 1 too, and its outputs are near
    them. So outputs count as logits only if their sigmoid is nearer to the labels than they are.

    Examples:
        >>> z, y = torch.tensor([[-3.0], [2.0]]), torch.tensor([0, 1])
        >>> binary_labels(z, y), binary_labels(z.sigmoid(), y)
        (tensor([False,  True]), tensor([0, 1]))
    """
    if y.is_complex() or not is_binary(z, y.bool()) or not bool(((y == 0) | (y == 1)).all()):
        return y
    numbers = y.reshape(z.shape).double()
    logits = (z.double().sigmoid() - numbers).square().sum() < (z.double() - numbers).square().sum()
    return y.bool() if logits else y.byte() if y.dtype == torch.bool else y


def look_like_classes(y: Tensor, z: Shaped) -> bool:
    """Return whether y seem to be classes in a form that `classifies` refuses: floats, one-hot, or several per row."""
    if z.ndim < 2 or z.shape[-1] < 2 or classifies(z, y) or is_binary(z, y):
        return False
    if not y.is_floating_point():
        return True
    of_pixels = (z.shape[:1] + z.shape[2:], (z.shape[0], 1, *z.shape[2:])) if z.ndim > 2 else ()
    if y.shape in (z.shape[:-1], (*z.shape[:-1], 1), *of_pixels) and y.shape != z.shape:
        C = z.shape[1] if y.shape in of_pixels else z.shape[-1]
        return C > 1 and bool((((y == y.round()) & (y >= 0) & (y < C)) | (y == IGNORED)).all())
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
    axis = None if y is None else class_axis(z, y)
    if y is None or axis is None:
        return
    shown = y[y != IGNORED]
    if shown.numel() and not 0 <= int(shown.min()) <= int(shown.max()) < z.shape[axis]:
        raise ValueError(
            f"the model has {z.shape[axis]} outputs, and labels are from {int(shown.min())} to {int(shown.max())}: "
            f"give classes from 0 on, {IGNORED} where a label does not count, or no labels, (x, None)"
        )
    strange = [] if classes is None else sorted(set(shown.unique().tolist()) - set(classes))
    if strange:
        raise ValueError(f"labels {strange} are not among classes={list(classes or [])}")


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, Number | np.generic) or (isinstance(leaf, Tensor) and not leaf.ndim)
