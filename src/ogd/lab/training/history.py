"""How far a training is: what came out so far, and all that it takes to go on from there."""

from dataclasses import dataclass, field

from torch import Tensor

from ogd.lab.records.metrics import Array

Weights = dict[str, Tensor]  # by the names of a stack's parameters


@dataclass
class History:
    """Accuracies so far, the weights every finished task ended with, and those of the last whole epoch."""

    finished: list[Weights] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)  # after `epoch` epochs of the present task; none at its start
    optimizer: dict[str, Tensor] = field(default_factory=dict)  # its state then, or that it brings from the last task
    epoch: int = 0
    accuracy: list[Array] = field(default_factory=list)  # (R, tasks), a row of the matrix
    curve_steps: list[int] = field(default_factory=list)
    curve: list[Array] = field(default_factory=list)  # (R, tasks), a point
    seconds: float = 0.0
