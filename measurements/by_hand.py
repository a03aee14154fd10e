"""EWC and A-GEM as users write them into a loop of their own, for any model."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def agem(params: "Sequence[Tensor]", reference: "Sequence[Tensor]") -> None:
    """Project `.grad` so that to first order the reference loss, of kept examples, does not grow."""
    import torch

    grads = [p.grad for p in params if p.grad is not None]
    dot = sum(float((g * r).sum()) for g, r in zip(grads, reference, strict=True))
    if dot < 0:
        torch._foreach_add_(grads, list(reference), alpha=-dot / sum(float(r.square().sum()) for r in reference))


class Consolidation:
    """EWC: ½ λ Σ_t Σ_j F_tj (w_j − w*_tj)² over finished tasks t, with the diagonal F of the Fisher information."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.H: list[Tensor] = []
        self.b: list[Tensor] = []

    def remember(self, params: "Sequence[Tensor]", losses: "Iterable[Tensor]") -> None:
        """Add a finished task, given the losses of single examples at the present weights."""
        import torch

        F, n = [torch.zeros_like(p) for p in params], 0
        for n, loss in enumerate(losses, 1):  # noqa: B007 (used after the loop)
            for f, g in zip(F, torch.autograd.grad(loss, params), strict=True):
                f.addcmul_(g, g)
        H = [f * (self.weight / n) for f in F]
        b = [h * p.detach() for h, p in zip(H, params, strict=True)]
        self.H = [old + new for old, new in zip(self.H, H, strict=True)] if self.H else H
        self.b = [old + new for old, new in zip(self.b, b, strict=True)] if self.b else b

    def add_gradient(self, params: "Sequence[Tensor]") -> None:
        """Add the penalty's gradient to `.grad`."""
        for p, h, b in zip(params, self.H, self.b, strict=True) if self.H else ():
            assert p.grad is not None
            p.grad.addcmul_(h, p.detach()).sub_(b)
