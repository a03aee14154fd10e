"""Adam (Kingma and Ba, 2015), as torch.optim.Adam does it:

    m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²,    w ← w − η m̂ / (√v̂ + ε)

with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ) in step t. A penalty's gradient is part of g.
"""

import torch
from torch import Tensor

from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers.optimizer import Optimizer
from ogd.lab.optimizers.quadratic import Quadratic

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Adam(Optimizer):
    """Adam with PyTorch's default β₁, β₂ and ε."""

    def __init__(self, model: Stack, lr: float) -> None:
        super().__init__(model, lr)
        self.m = [torch.zeros_like(w) for w in self.params]
        self.v = [torch.zeros_like(w) for w in self.params]
        self.t = torch.zeros((), dtype=torch.long)

    @torch.no_grad()
    def step(self, gradient: Gradient, penalty: Quadratic | None = None) -> None:
        g = gradient.tensors()
        if penalty is not None:
            penalty.add_gradient(self.params, g)
        (b1, b2), t = BETAS, int(self.t.add_(1))
        torch._foreach_lerp_(self.m, g, 1 - b1)
        torch._foreach_mul_(self.v, b2)
        torch._foreach_addcmul_(self.v, g, g, value=1 - b2)
        denominator = torch._foreach_sqrt(self.v)
        torch._foreach_div_(denominator, (1 - b2**t) ** 0.5)
        torch._foreach_add_(denominator, EPSILON)
        torch._foreach_addcdiv_(self.params, self.m, denominator, value=-self.lr / (1 - b1**t))

    def state(self) -> dict[str, Tensor]:
        m = {f"m.{i}": t for i, t in enumerate(self.m)}
        return {**m, **{f"v.{i}": t for i, t in enumerate(self.v)}, "t": self.t}
