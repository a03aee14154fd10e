"""The remembered loss of some examples: how far their outputs have moved, and their labels.

    ℓ = α mean_c (z_c − z*_c)² + cross-entropy(z, y)        z* as remembered, c over the task's outputs

The second term is there for whole-number labels of two or more outputs: dark experience replay (DER++) of Buzzega et
al. (2020), with the mean over the outputs. Without labels only the first is left. Where a head has grown since, the
first is over the outputs that there were, the second over all that there are now.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.rehearsal.examples import Batch, classifies

IGNORED = -100  # a label that does not count, as in torch's cross_entropy
SUMMED = 2  # reduction="sum"


def remembered_loss(z: Tensor, batch: Batch, alpha: float, labels: bool = True) -> Tensor:
    """The sum of ℓ over a batch, given its present outputs z.

    Examples:
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> remembered_loss(z + 1, Batch(None, None, z), alpha=0.5)
        tensor(0.5000)
    """
    z = z.float() if z.dtype in (torch.bfloat16, torch.float16) else z
    old, target = comparable(z, batch.z), batch.z.to(z)
    counts = batch.counts(old.shape[-1])
    if counts is None:
        weight = alpha * len(z) / max(old.numel(), 1)
        # functional.mse_loss expands both first, even where they fit
        distance = torch._C._nn.mse_loss(old, target, SUMMED)  # type: ignore[arg-type]
    else:
        weight = alpha
        distance = (((old - target).square() * counts).sum(1) / counts.sum(1)).sum()
    if not (labels and batch.y is not None and classifies(z, batch.y)):
        return weight * distance
    counts = batch.counts(z.shape[-1])
    shown = z if counts is None else z.masked_fill(~counts, -torch.inf)
    return torch.add(_entropies(shown, batch.y.long()), distance, alpha=weight)  # one operation, not two


def comparable(z: Tensor, remembered: Tensor) -> Tensor:
    """Of the outputs z those that there were when an example was remembered: a head may have grown."""
    if z.shape == remembered.shape:
        return z
    if z.ndim < 2 or z.shape[:-1] != remembered.shape[:-1] or z.shape[-1] < remembered.shape[-1]:
        raise ValueError(
            f"the model gives outputs of shape {tuple(z.shape)} where {tuple(remembered.shape)} were remembered: it "
            "may gain outputs, but not lose or replace any; forget the tasks (memory.forget) and remember again"
        )
    return z[..., : remembered.shape[-1]]


def _entropies(z: Tensor, y: Tensor) -> Tensor:
    """The sum over examples of their cross-entropy; of an example with many labels, their mean."""
    if y.ndim == 1:
        return functional.cross_entropy(z, y, reduction="sum")
    each = functional.cross_entropy(z.movedim(-1, 1), y, reduction="none").flatten(1).sum(1)
    return (each / (y != IGNORED).flatten(1).sum(1).clamp(min=1)).sum()


def next_tokens(y: Tensor | None, inputs: Sequence[Tensor]) -> Tensor | None:
    """Labels that only repeat a sequence of inputs stand for the next token, as in Hugging Face's causal models.

    Examples:
        >>> tokens = torch.tensor([[5, 6, 7]])
        >>> next_tokens(tokens, [tokens])
        tensor([[   6,    7, -100]])
    """
    if y is None or y.ndim < 2 or y.is_floating_point():
        return y
    for x in inputs:
        if x.shape == y.shape and bool(((x == y) | (y == IGNORED)).all()):
            return torch.cat([y[:, 1:], torch.full_like(y[:, :1], IGNORED)], 1)
    return y


def check_classes(z: Tensor, y: Tensor | None, classes: Sequence[int] | None) -> None:
    """Classes must be among the outputs, and labels among both."""
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
