"""Compute the remembered loss of examples: how far their outputs have moved, and how well they fit their labels.

    ℓ = α mean_c (z_c − z*_c)² + cross-entropy(z, y)        z*: the remembered outputs, c: an output of the task

This is dark experience replay (DER++) of Buzzega et al. (2020), with the mean over the outputs. The second term needs
whole-number labels and two or more outputs, or one logit with labels 0 and 1, whose cross-entropy is binary; otherwise
only the first is used. If a head has grown since, the first term is over the outputs of that time, the second over all
present outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.data.labels import IGNORED, class_axis, is_binary
from ogd.memory.examples.kept_examples import Batch


def remembered_loss(z: Tensor, batch: Batch, alpha: float, labels: bool = True) -> Tensor:
    """Return the sum of ℓ over a batch, given its present outputs z.

    Examples:
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> remembered_loss(z + 1, Batch(None, None, z), alpha=0.5)
        tensor(0.5000)
    """
    z = z.float() if z.dtype in (torch.bfloat16, torch.float16) else z
    old, target = original_outputs(z, batch.z), batch.z.to(z)
    mask = batch.mask(old.shape[-1])
    if mask is None:
        weight = alpha * len(z) / max(old.numel(), 1)
        distance = functional.mse_loss(old, target, reduction="sum")
    else:
        weight = alpha
        distance = (((old - target).square() * mask).sum(1) / mask.sum(1)).sum()
    y = batch.y if labels else None
    if y is not None and is_binary(z, y):
        return torch.add(_binary_entropies(z, y), distance, alpha=weight)
    axis = None if y is None else class_axis(z, y)
    if y is None or axis is None:
        return weight * distance
    mask = batch.mask(z.shape[-1])
    shown = z if mask is None else z.masked_fill(~mask, -torch.inf)
    return torch.add(_entropies(shown.movedim(axis, 1), y.long()), distance, alpha=weight)  # one operation, not two


def reference_losses(batch: Batch, alpha: float, labels: bool = True) -> tuple[float, float]:
    """Return the sum of ℓ over a batch at its remembered outputs, and at constant outputs: their mean.

    Examples:
        >>> batch = Batch(None, None, torch.tensor([[0.0], [2.0]]))
        >>> reference_losses(batch, alpha=0.5)
        (0.0, 1.0)
    """
    z = batch.z.float()
    mask = batch.mask(z.shape[-1])
    shown = torch.ones_like(z) if mask is None else mask.to(z)
    axis = None if batch.y is None else class_axis(z, batch.y)
    classes = z.ndim - 1 if axis is None else axis % z.ndim
    axes = [i for i in range(z.ndim) if i != classes or z.ndim == 1]
    mean = (z * shown).sum(axes, keepdim=True) / shown.sum(axes, keepdim=True).clamp(min=1)
    return float(remembered_loss(z, batch, alpha, labels)), float(
        remembered_loss(mean.expand_as(z), batch, alpha, labels)
    )


def original_outputs(z: Tensor, remembered: Tensor) -> Tensor:
    """Return the outputs z that existed when the examples were remembered: a head may have grown."""
    if z.shape == remembered.shape:
        return z
    if z.ndim > 3 and z.shape[1] > remembered.shape[1] and z[:, : remembered.shape[1]].shape == remembered.shape:
        return z[:, : remembered.shape[1]]  # more classes of pixels, (B, C, H, W)
    if z.ndim < 2 or z.shape[:-1] != remembered.shape[:-1] or z.shape[-1] < remembered.shape[-1]:
        raise ValueError(
            f"the model gives outputs of shape {tuple(z.shape)} where {tuple(remembered.shape)} were remembered: it "
            "may gain outputs, but not lose or replace any; forget the tasks (memory.forget) and remember again"
        )
    return z[..., : remembered.shape[-1]]


def _entropies(z: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of outputs (B, C, …); several labels of an example count as their mean."""
    if y.ndim == 1:
        return functional.cross_entropy(z, y, reduction="sum")
    each = functional.cross_entropy(z, y, reduction="none").flatten(1).sum(1)
    return (each / (y != IGNORED).flatten(1).sum(1).clamp(min=1)).sum()


def _binary_entropies(z: Tensor, y: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(z, y.reshape(z.shape).to(z), reduction="none")
    return each.reshape(len(z), -1).mean(1).sum()
