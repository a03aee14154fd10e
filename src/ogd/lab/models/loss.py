"""Softmax cross-entropy over a head, averaged over a batch: only its gradient is ever needed."""

from torch import Tensor


def loss_gradient(logits: Tensor, target: Tensor, head: Tensor | None) -> Tensor:
    """Return ∂L/∂logits (R, B, C): (softmax(z + head) − y) / B, where `head` is −∞ outside the task's classes."""
    z = logits if head is None else logits + head
    return z.softmax(-1).sub_(target).div_(logits.shape[1])
