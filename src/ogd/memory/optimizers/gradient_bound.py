"""Bound what rehearsal adds to the gradients, by the size of the gradients that the optimizer finds and by the loss.

    n ← max(|g|, 0.9 n)                              g: the step's own gradient, n: its largest recent norm
    s = the largest number in [0, 1] with |g + s a| ≤ max(c n, |g|)       a = k ∇L: what is to be added, c: the bound
                                      and η s ⟨a, ∇L⟩ ≤ L                 L: the remembered loss, SGD's learning rate η

The gradient of a squared distance has no limit of its own. With a high learning rate, or after gradients were clipped,
it can be far larger than any gradient that plain training tolerates; then the weights diverge. So the step as a whole
is not much longer than the longest that plain training has recently taken. In SGD, where the step is as long as the
gradient, it also promises to lower the remembered loss by at most all of it, as Polyak's step size does: on a quadratic
of curvature λ then s k η λ ≤ ½, half of the way to its minimum. Functions take and return tensors of any shape, one
number for each run.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

DECAY = 0.9  # of the largest norm, from one rehearsal to the next


def recent_norm(n: Tensor, own: Tensor) -> Tensor:
    """Return the largest recent norm n, given the norm of the step's own gradient; 0 before the first.

    A norm that is not finite is left out.

    Examples:
        >>> recent_norm(torch.tensor([2.0, 2.0]), own=torch.tensor([3.0, 1.0]))
        tensor([3.0000, 1.8000])
    """
    return torch.where(own.isfinite(), torch.maximum(DECAY * n, own), n)


def bounding_scale(n: Tensor, own: Tensor, added: Tensor, dot: Tensor, bound: float | Tensor) -> Tensor:
    """Return the scale s, given |g|, |a| and their dot product; 1 before the step had a gradient of its own.

    Examples:
        >>> n, own, added = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.6, 0.0], [8.0, 0.8, 8.0]])
        >>> bounding_scale(n, own, added, dot=torch.zeros(3), bound=1.0)
        tensor([0.1250, 1.0000, 1.0000])
    """
    room = ((bound * n).square() - own.square()).clamp(min=0)
    s = ((dot.square() + added.square() * room).sqrt() - dot) / added.square()  # where |g + s a|² = |g|² + room
    return torch.where((n > 0) & (added > 0) & s.isfinite(), s.clamp(0, 1), 1.0)


def descent_scale(loss: Tensor, reach: Tensor, every: int) -> Tensor:
    """Return the scale s ≤ 1 with η s ⟨a, ∇L⟩ ≤ L, given L, the reach η |a|² and k, because a = k ∇L.

    Where parts of the weights have learning rates of their own, the reach is the sum of theirs.

    Examples:
        >>> descent_scale(torch.tensor([0.5, 8.0]), reach=torch.tensor([8.0, 8.0]), every=2)
        tensor([0.1250, 1.0000])
    """
    return (loss * every / reach).nan_to_num(1.0).clamp(0, 1)


def sgd_rate(lr: float, momentum: float) -> float:
    """Return how far a gradient moves the weights: the mean of η, at once, and η / (1 − μ), in the end.

    Examples:
        >>> sgd_rate(0.5, momentum=0.75)
        1.25
    """
    return lr * (1 + 1 / max(1 - momentum, 1e-6)) / 2


def joint_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all numbers in some tensors, dense or sparse.

    Examples:
        >>> joint_norm([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(5.)
    """
    dense = [t if t.layout is torch.strided else t.coalesce().values() for t in tensors]
    if not dense:
        return torch.zeros(())
    found: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(dense, dtype=_wide(dense))))
    return found


def inner_product(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of the inner products of pairs of tensors, dense or sparse.

    Examples:
        >>> g, a = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])
        >>> inner_product([(g, a), (2 * g, 4 * a)])
        tensor(45.)
    """
    wide = _wide(t for pair in pairs for t in pair)
    products = [torch.dot(_numbers(g, wide), _numbers(a, wide)) for g, a in pairs]
    return torch.stack(products).sum() if products else torch.zeros(())


def _numbers(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return all numbers of a tensor in one row."""
    flat = (t if t.layout is torch.strided else t.to_dense()).flatten()
    return flat if t.dtype is dtype else flat.to(dtype)


def _wide(tensors: Iterable[Tensor]) -> torch.dtype:
    return torch.float64 if torch.float64 in {t.dtype for t in tensors} else torch.float32
