"""Compute the remembered loss of examples: how far their outputs have moved, and how well they fit their labels.

    ℓ = α h(m) + cross-entropy(z, y),   m = mean_c (z_c − z*_c)²        z*: the remembered outputs, c: one of the task's
    h(m) = 2 δ² (√(1 + m/δ²) − 1)                                      about m for small m, and 2 δ √m for large m

This is dark experience replay (DER++) of Buzzega et al. (2020), but for h: a squared distance of logits pulls ever
harder the further they have moved, and with high learning rates that destroys the model. The second term needs
whole-number labels and two or more outputs; without them ℓ = α m, but for labels 0 and 1 of one logit, whose
cross-entropy is binary. If a head has grown since, the first term is over the outputs of that time, the second over all
present outputs. In outputs of several positions, those whose label is −100
and padding do not count.

Of many class scores only a distribution q is kept (`top_probabilities.py`). Then the first term is α · 2 KL(q ‖ p), the
mean over the positions. To second order in the change δ = z − z*, that is the mean of (δ_c − δ̄)² under q, so one α has
the same weight in both forms: for equal q_c and a change without a common part, both terms are the same. Its gradient
has a limit, so it needs no h.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from ogd.memory.data.labels import IGNORED, class_axis, classifies, is_binary
from ogd.memory.examples.divergence import divergence_loss, divergences, divergences_of_scores
from ogd.memory.examples.kept_examples import Batch
from ogd.memory.examples.top_probabilities import Outputs, TopProbabilities

DELTA = 0.5  # δ, in units of the logits


def remembered_loss(z: Tensor, batch: Batch, alpha: float, labels: bool = True) -> Tensor:
    """Return the sum of ℓ over a batch, given its present outputs z.

    Examples:
        >>> z = torch.tensor([[1.0, 2.0]])
        >>> remembered_loss(z + 1, Batch(None, None, z), alpha=0.5)
        tensor(0.5000)
    """
    if isinstance(batch.z, TopProbabilities):
        return _loss_of_distribution(z, batch, batch.z, alpha, labels)
    z = z.float() if z.dtype in (torch.bfloat16, torch.float16) else z
    old, target = original_outputs(z, batch.z), batch.z.to(z)
    mask, counted = batch.mask(old.shape[-1]), batch.counted
    axis = None if batch.y is None else class_axis(z, batch.y)
    if axis is None and mask is None and counted is None:
        distance = alpha * len(z) / max(old.numel(), 1) * functional.mse_loss(old, target, reduction="sum")
        binary = labels and batch.y is not None and is_binary(z, batch.y)
        return distance + _binary_entropies(z, batch.y) if binary and batch.y is not None else distance
    square = (old - target).square()
    m = square.mean(-1 if axis is None else axis) if mask is None else (square * mask).sum(-1) / mask.sum(-1)
    distance = m if axis is None else robust_distance(m)
    if counted is not None:
        distance = distance * _position_weights(counted, z.dtype)
    elif distance.ndim > 1:
        distance = distance.mean(tuple(range(1, distance.ndim)))
    distance = distance.sum()
    if not labels or axis is None or batch.y is None:
        return alpha * distance
    mask = batch.mask(z.shape[-1])
    shown = z if mask is None else z.masked_fill(~mask, -torch.inf)
    entropies = _entropies(shown.movedim(axis, 1), batch.y.long())
    return torch.add(entropies, distance, alpha=alpha)  # one operation, not two


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
    if isinstance(batch.z, TopProbabilities):
        return _references_of_distribution(batch, batch.z, alpha, labels)
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


@torch.no_grad()
def squared_change(z: Tensor, batch: Batch) -> tuple[float, float, int]:
    """Return the sum of the squared changes of a batch's outputs, that of the outputs' squares, and their number.

    Of a distribution every position counts once: twice its divergence is the change, and 1 nat the size.
    """
    z, counted = original_outputs(z, batch.z), batch.counted
    if isinstance(batch.z, TopProbabilities):
        change = 2 * divergences_of_scores(z, batch.z).double()
        change = change if counted is None else change[counted]
        return float(change.sum()), float(change.numel()), change.numel()
    mask = batch.mask(z.shape[-1]) if counted is None else counted
    before = batch.z
    if batch.y is not None and (axis := class_axis(z, batch.y)) is not None:
        z, before = z.movedim(axis, -1), before.movedim(axis, -1)
    z, before = (t if mask is None else t[mask] for t in (z.double(), before.double()))
    return float((z - before).square().sum()), float(before.square().sum()), z.numel()


def original_outputs(z: Tensor, remembered: Outputs) -> Tensor:
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


def _loss_of_distribution(z: Tensor, batch: Batch, top: TopProbabilities, alpha: float, labels: bool) -> Tensor:
    old = original_outputs(z, top)
    w = _weights(batch, torch.promote_types(z.dtype, torch.float32))
    y = batch.y if labels and batch.y is not None and classifies(z, batch.y) else None
    if y is None or old is z:
        return divergence_loss(old, top, y, w, 2 * alpha)
    return divergence_loss(old, top, None, w, 2 * alpha) + _entropies(
        z.float().movedim(-1, 1), y.long()
    )  # the head has grown


def _references_of_distribution(batch: Batch, top: TopProbabilities, alpha: float, labels: bool) -> tuple[float, float]:
    w, logq, places, C = _weights(batch, torch.float32), top.log_probabilities(), top.places, top.C
    q = logq.exp()
    mean = torch.full((C,), float((w * q[..., -1]).sum()) / C, device=w.device)  # as if all others were equal
    mean = mean.scatter_add(0, places.flatten(), (w.unsqueeze(-1) * q[..., :-1]).flatten()).clamp(min=1e-30)
    mean /= mean.sum()
    others = (1 - mean[places].sum(-1, keepdim=True)).clamp(min=1e-7)
    constant = 2 * alpha * divergences(torch.cat([mean[places], others], -1).log(), top)
    start = torch.zeros_like(constant)
    if labels and batch.y is not None and classifies(top, batch.y):
        y = batch.y.long()
        labelled, label = y != IGNORED, y.clamp(min=0).unsqueeze(-1)
        at = places == label
        own = torch.where(at.any(-1), (logq[..., :-1] * at).sum(-1), logq[..., -1] - math.log(C - places.shape[-1]))
        start -= own * labelled
        constant -= mean[label.squeeze(-1)].log() * labelled
    return float((w * start).sum()), float((w * constant).sum())


def _weights(batch: Batch, dtype: torch.dtype) -> Tensor:
    """Return the weight of each position of a batch."""
    counted = batch.counted
    shape, device = batch.z.shape[:-1], batch.z.device
    return _position_weights(torch.ones(shape, dtype=torch.bool, device=device) if counted is None else counted, dtype)


def _position_weights(counted: Tensor, dtype: torch.dtype) -> Tensor:
    """Return equal weights for the positions of each example that count, which add up to 1 if there are any."""
    n = counted.sum(tuple(range(1, counted.ndim)), keepdim=True) if counted.ndim > 1 else counted.long()
    return counted.to(dtype) / n.clamp(min=1)


def _binary_entropies(z: Tensor, y: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(z, y.reshape(z.shape).to(z), reduction="none")
    return each.reshape(len(z), -1).mean(1).sum()
