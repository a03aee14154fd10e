"""Gradient descent: v ← μ v + g + ∂penalty/∂w, w ← w − η v, as torch.optim.SGD does."""

import torch
from torch import Tensor

from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers.optimizer import Optimizer
from ogd.lab.optimizers.quadratic import Quadratic


class SGD(Optimizer):
    """Gradient descent with momentum μ. Without it no gradient is ever written out."""

    linear = True

    def __init__(self, model: Stack, lr: float, momentum: float = 0.0) -> None:
        super().__init__(model, lr)
        self.momentum = momentum
        self.velocity = [torch.zeros_like(w) for w in self.params] if momentum else []

    @torch.no_grad()
    def step(self, gradient: Gradient, penalty: Quadratic | None = None) -> None:
        if not self.momentum:
            if penalty is not None:
                penalty.descend(self.params, self.lr)
            gradient.descend(self.params, self.lr)
            return
        gradient.accumulate(self.velocity, self.momentum)
        if penalty is not None:
            penalty.add_gradient(self.params, self.velocity)
        torch._foreach_add_(self.params, self.velocity, alpha=-self.lr)

    def state(self) -> dict[str, Tensor]:
        return {f"velocity.{i}": v for i, v in enumerate(self.velocity)}
