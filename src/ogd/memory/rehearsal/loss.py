"""The remembered loss of some examples: how far their outputs have moved, and their labels.

    ℓ = α mean_c (z_c − z*_c)² + cross-entropy(z, y)        z* as remembered, c over the task's outputs

The second term is there for whole-number labels of two or more outputs: dark experience replay (DER++) of Buzzega et
al. (2020), with the mean over the outputs. Without labels only the first is left.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.rehearsal.examples import Batch

IGNORED = -100  # a label that does not count, as in torch's cross_entropy


def remembered_loss(z: Tensor, batch: Batch, alpha: float, labels: bool = True) -> Tensor:
    """The sum of ℓ over a batch, given its present outputs z.

    Examples:
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> remembered_loss(z + 1, Batch(None, None, z, None, None), alpha=0.5)
        tensor(0.5000)
    """
    z = z.float() if z.dtype in (torch.bfloat16, torch.float16) else z
    target = batch.z.to(z)
    if batch.counts is None:
        loss = alpha * len(z) / max(z.numel(), 1) * functional.mse_loss(z, target, reduction="sum")
    else:
        loss = alpha * (((z - target).square() * batch.counts).sum(1) / batch.counts.sum(1)).sum()
    if labels and batch.y is not None and classifies(z, batch.y):
        shown = z if batch.counts is None else z.masked_fill(~batch.counts, -torch.inf)
        loss = loss + _entropies(shown, batch.y.long())
    return loss


def _entropies(z: Tensor, y: Tensor) -> Tensor:
    """The sum over examples of their cross-entropy; of an example with many labels, their mean."""
    if y.ndim == 1:
        return functional.cross_entropy(z, y, reduction="sum")
    each = functional.cross_entropy(z.movedim(-1, 1), y, reduction="none").flatten(1).sum(1)
    return (each / (y != IGNORED).flatten(1).sum(1).clamp(min=1)).sum()


def classifies(z: Tensor, y: Tensor) -> bool:
    """Whether y are the classes of outputs z: whole numbers, one per row of two or more outputs."""
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return whole and z.ndim > 1 and z.shape[-1] > 1 and y.shape == z.shape[:-1]


def check_classes(z: Tensor, y: Tensor | None, classes: Sequence[int] | None) -> None:
    """Labels must be among the outputs, or among the task's classes."""
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
