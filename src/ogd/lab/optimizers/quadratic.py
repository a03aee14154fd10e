"""A quadratic penalty ½ Σ H ∘ w² − Σ b ∘ w: its gradient is H ∘ w − b, and any sum of such is one such."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Quadratic:
    """The penalty, one H and one b (R, …) per parameter."""

    def __init__(self, H: Sequence[Tensor], b: Sequence[Tensor]) -> None:
        self.H, self.b = list(H), list(b)
        self._lr: float | None = None
        self._factor: list[Tensor] = []
        self._shift: list[Tensor] = []

    def descend(self, parameters: Sequence[Tensor], lr: float) -> None:
        """Take a step on the penalty in place: w ← w − η (H ∘ w − b) = (1 − η H) ∘ w + η b, in one pass."""
        if lr != self._lr:
            self._factor, self._shift = [1 - lr * H for H in self.H], [lr * b for b in self.b]
            self._lr = lr
        for w, factor, shift in zip(parameters, self._factor, self._shift, strict=True):
            torch.addcmul(shift, factor, w, out=w)

    def add_gradient(self, parameters: Sequence[Tensor], to: Sequence[Tensor]) -> None:
        """Add the gradient H ∘ w − b to other tensors."""
        for w, H, b, v in zip(parameters, self.H, self.b, to, strict=True):
            v.addcmul_(H, w).sub_(b)
