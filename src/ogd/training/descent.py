"""Gradient descent with momentum on a stack: v ← μ v + g + ∂penalty/∂w, w ← w − η v, as torch.optim.SGD does."""

import torch

from ogd.methods.penalty import Quadratic
from ogd.models import Factors, StackedMLP


class Descent:
    """The optimizer of one task. Without momentum no gradient is ever formed."""

    def __init__(self, model: StackedMLP, lr: float, momentum: float = 0.0) -> None:
        self.model, self.lr, self.momentum = model, lr, momentum
        self.parameters = [w for layer in model.layers for w in layer]  # weight, bias, weight, bias, …
        self.velocity = [torch.zeros_like(w) for w in self.parameters] if momentum else []

    @torch.no_grad()
    def step(self, gradient: Factors, penalty: Quadratic | None) -> None:
        """Take one step; both gradients are those at the present weights."""
        if not self.momentum:
            if penalty is not None:
                penalty.descend(self.parameters, self.lr)
            self.model.descend(gradient, self.lr)
            return
        for (a, delta), v, v_bias in zip(gradient, self.velocity[::2], self.velocity[1::2], strict=True):
            v.baddbmm_(delta.mT, a, beta=self.momentum)
            v_bias.mul_(self.momentum).add_(delta.sum(1))
        if penalty is not None:
            penalty.add_gradient(self.parameters, self.velocity)
        torch._foreach_add_(self.parameters, self.velocity, alpha=-self.lr)
