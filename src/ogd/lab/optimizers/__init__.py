"""How a stack moves: optimizers of `torch.optim` for R runs at once, equal to the originals apart from rounding."""

from ogd.lab.models.stack import Stack
from ogd.lab.optimizers.adam import Adam
from ogd.lab.optimizers.optimizer import Optimizer
from ogd.lab.optimizers.quadratic import Quadratic
from ogd.lab.optimizers.sgd import SGD
from ogd.lab.records.schedule import Schedule

__all__ = ["SGD", "Adam", "Optimizer", "Quadratic", "optimizer_of"]


def optimizer_of(schedule: Schedule, model: Stack) -> Optimizer:
    """Return the optimizer that a schedule names, for one task."""
    if schedule.optimizer == "adam":
        return Adam(model, schedule.lr)
    return SGD(model, schedule.lr, schedule.momentum)
