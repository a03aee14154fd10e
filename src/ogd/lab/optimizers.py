"""The optimizers of a stack of runs: SGD and Adam, equal to those of `torch.optim` apart from rounding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.records.request import Schedule

__all__ = ["SGD", "Adam", "Optimizer", "Quadratic", "optimizer_of"]

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam


class Quadratic:
    """A quadratic penalty ½ Σ H ∘ w² − Σ b ∘ w, with one H and one b (R, …) per parameter.

    Its gradient is H ∘ w − b. The sum of several such penalties is again one.
    """

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


class Optimizer:
    """Moves the parameters of one stack in place, during one task."""

    linear = False  # whether its update is linear in the gradients, so that projecting these projects the update

    def __init__(self, model: Stack, lr: float) -> None:
        self.model, self.lr = model, lr
        self.params = list(model.params.values())

    def step(self, gradient: Gradient, penalty: Quadratic | None = None) -> None:
        """Take one step; the gradient and the penalty are those at the present weights."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return all that resuming needs besides the weights."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Resume from what `state` returned; raise a ValueError if it belongs to another optimizer or model."""
        own = self.state()
        if {name: t.shape for name, t in state.items()} != {name: t.shape for name, t in own.items()}:
            raise ValueError("the state of the optimizer does not fit")
        for name, value in state.items():
            own[name].copy_(value)


class SGD(Optimizer):
    """Gradient descent with momentum μ: v ← μ v + g + ∂penalty/∂w, w ← w − η v.

    Without momentum it never forms the gradient.
    """

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


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015) with PyTorch's default β₁, β₂ and ε:

        m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²,    w ← w − η m̂ / (√v̂ + ε)

    with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ) in step t. A penalty's gradient is part of g.
    """

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


def optimizer_of(schedule: Schedule, model: Stack) -> Optimizer:
    """Make the optimizer that a schedule names, for one task."""
    if schedule.optimizer == "adam":
        return Adam(model, schedule.lr)
    return SGD(model, schedule.lr, schedule.momentum)
