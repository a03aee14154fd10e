"""Compute the remembered loss of examples: how far their outputs have moved, and how well they fit their labels.

    ℓ = α h(m) + cross-entropy(z, y),   m = mean_c (z_c − z*_c)²        z*: the remembered outputs, c: one of the task's
    h(m) = 2 δ² (√(1 + m/δ²) − 1)                                      about m for small m, and 2 δ √m for large m

This is dark experience replay (DER++) of Buzzega et al. (2020), but for h: a squared distance of logits pulls ever
harder the further they have moved, and with high learning rates that destroys the model. The second term needs
whole-number labels and two or more outputs; without them ℓ = α m. If a head has grown since, the first term is over the
outputs of that time, the second over all present outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.data.labels import IGNORED, classifies
from ogd.memory.examples.kept_examples import Batch

DELTA = 0.5  # δ, in units of the logits


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
    if batch.y is None or not classifies(z, batch.y):
        return alpha * len(z) / max(old.numel(), 1) * functional.mse_loss(old, target, reduction="sum")
    square = (old - target).square()
    m = square.mean(-1) if mask is None else (square * mask).sum(-1) / mask.sum(-1)
    distance = robust_distance(m).mean(tuple(range(1, m.ndim))).sum() if m.ndim > 1 else robust_distance(m).sum()
    if not labels:
        return alpha * distance
    mask = batch.mask(z.shape[-1])
    shown = z if mask is None else z.masked_fill(~mask, -torch.inf)
    return torch.add(_entropies(shown, batch.y.long()), distance, alpha=alpha)  # one operation, not two


def robust_distance(m: Tensor) -> Tensor:
    """Return h(m), in a form without cancellation.

    Examples:
        >>> robust_distance(torch.tensor([1e-6, 100.0]))
        tensor([1.0000e-06, 9.5125e+00])
    """
    return 2 * m / (1 + (1 + m / DELTA**2).sqrt())


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
    axes = tuple(range(max(z.ndim - 1, 1)))
    mean = (z * shown).sum(axes) / shown.sum(axes).clamp(min=1)
    return float(remembered_loss(z, batch, alpha, labels)), float(
        remembered_loss(mean.expand_as(z), batch, alpha, labels)
    )


def original_outputs(z: Tensor, remembered: Tensor) -> Tensor:
    """Return the outputs z that existed when the examples were remembered: a head may have grown."""
    if z.shape == remembered.shape:
        return z
    if z.ndim < 2 or z.shape[:-1] != remembered.shape[:-1] or z.shape[-1] < remembered.shape[-1]:
        raise ValueError(
            f"the model gives outputs of shape {tuple(z.shape)} where {tuple(remembered.shape)} were remembered: it "
            "may gain outputs, but not lose or replace any; forget the tasks (memory.forget) and remember again"
        )
    return z[..., : remembered.shape[-1]]


def _entropies(z: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the examples' cross-entropies; an example with several labels counts with their mean."""
    if y.ndim == 1:
        return functional.cross_entropy(z, y, reduction="sum")
    each = functional.cross_entropy(z.movedim(-1, 1), y, reduction="none").flatten(1).sum(1)
    return (each / (y != IGNORED).flatten(1).sum(1).clamp(min=1)).sum()
