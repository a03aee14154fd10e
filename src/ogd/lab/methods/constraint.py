"""What a method does around the steps of one task, besides its gradient: most do nothing."""

from typing import Any, Protocol

from torch import Tensor

from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack


class Network(Protocol):
    """What computes a step: the stack itself, or something that stands in for it."""

    def passing(self, x: Tensor) -> tuple[Any, Tensor]: ...

    def backward(self, tape: Any, delta: Tensor) -> Gradient: ...


class Constraint:
    """Leaves the stack as the optimizer moves it; OGD's projections override this.

    `network` computes the steps. The loop calls `foresee` with the inputs (R, steps · B, …) of the coming steps,
    `after_step` after each, `settle` at the end of every epoch, and `settled` when it looks at the weights in between.
    """

    def __init__(self, model: Stack) -> None:
        self.model = model
        self.network: Network = model

    def foresee(self, x: Tensor) -> None:
        """Look at the inputs of the coming steps, which `network` will be given in order."""

    def after_step(self) -> None:
        """Correct what a step did."""

    def settle(self) -> None:
        """Bring the weights up to date."""

    def settled(self) -> Stack:
        """Return a stack whose weights are up to date, and leave this one as it is."""
        return self.model
