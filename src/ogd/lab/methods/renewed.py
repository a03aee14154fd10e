"""OGD's projection with gradients of the present weights: those of the kept examples are taken anew now and then.

Gradients that were stored once hold the outputs while the network is nearly linear in its weights. With every renewal
G is that of the weights as they are, so P holds what the network does now, which may have drifted a little.
"""

from collections.abc import Callable

from ogd.lab.methods.explicit import Explicit
from ogd.lab.optimizers import Optimizer
from ogd.memory.projection.projector import Projector


class Renewed(Explicit):
    """Projects every k steps, by a projector that is made anew after `refresh` steps and at the end of an epoch.

    The end of an epoch counts because a training that was killed is taken up there.
    """

    def __init__(self, optimizer: Optimizer, projector: Callable[[], Projector], every: int, refresh: int) -> None:
        self.made, self.refresh, self.steps = projector, refresh, 0
        super().__init__(optimizer, projector(), every)

    def after_step(self) -> None:
        self.steps, self.pending = self.steps + 1, self.pending + 1
        if self.steps == self.refresh:
            self.settle()
        elif self.pending == self.every:
            super().settle()

    def settle(self) -> None:
        super().settle()
        self.projector, self.steps = self.made(), 0
