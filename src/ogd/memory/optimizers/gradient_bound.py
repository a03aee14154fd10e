"""Bound what rehearsal adds to the gradients by the size of the gradients that the optimizer finds.

    n ← max(|g|, 0.9 n)                      g: the step's own gradient, n: its largest recent norm
    a ← s a,    s = min(1, c n / |a|)        a: what is to be added, c: the bound

The gradient of a squared distance has no limit of its own. With a high learning rate, or after gradients were clipped,
it can be far larger than any gradient that plain training tolerates; then the weights diverge. The largest recent norm
and not their mean, because most steps on a new class are short while old classes need long ones. Functions take and
return tensors of any shape, one number for each run.
"""

from collections.abc import Iterable

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


def bounding_scale(n: Tensor, added: Tensor, bound: float | Tensor) -> Tensor:
    """Return the scale s, given the norm |a| of what is to be added; 1 before the step had a gradient of its own.

    Examples:
        >>> bounding_scale(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([8.0, 0.5, 8.0]), bound=2.0)
        tensor([0.2500, 1.0000, 1.0000])
    """
    return torch.where(n > 0, (bound * n / added).clamp(max=1), 1.0)


def joint_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all numbers in some tensors, dense or sparse.

    Examples:
        >>> joint_norm([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(5.)
    """
    dense = [t if t.layout is torch.strided else t.coalesce().values() for t in tensors]
    if not dense:
        return torch.zeros(())
    wide = torch.float64 if any(t.dtype is torch.float64 for t in dense) else torch.float32
    found: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(dense, dtype=wide)))
    return found
