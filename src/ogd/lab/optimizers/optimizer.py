"""The contract of an optimizer: it belongs to one task, and its state can be kept and taken up again."""

from torch import Tensor

from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers.quadratic import Quadratic


class Optimizer:
    """Moves the parameters of one stack, in place."""

    linear = False  # whether what it does is linear in the gradients, so that a projection of these carries over

    def __init__(self, model: Stack, lr: float) -> None:
        self.model, self.lr = model, lr
        self.params = list(model.params.values())

    def step(self, gradient: Gradient, penalty: Quadratic | None = None) -> None:
        """Take one step; both gradients are those at the present weights."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return what it takes to go on from here, besides the weights."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Resume from what `state` returned; raise a ValueError if it belongs to another optimizer or model."""
        own = self.state()
        if {name: t.shape for name, t in state.items()} != {name: t.shape for name, t in own.items()}:
            raise ValueError("the state of the optimizer does not fit")
        for name, value in state.items():
            own[name].copy_(value)
