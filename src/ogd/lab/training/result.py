"""What a training gives: the accuracy matrix, the curves, and every metric derived from them."""

from dataclasses import dataclass

from ogd.lab.models.stack import Stack
from ogd.lab.records import metrics
from ogd.lab.records.metrics import Array


@dataclass(frozen=True)
class Result:
    """What came out, for every run: `accuracy` (R, 1 + tasks, tasks), fractions; row i is after i tasks."""

    runs: tuple[int, ...]
    accuracy: Array
    curve_steps: list[int]
    curve: Array  # (R, points, tasks), NaN before a task began
    seconds: float  # all of it, a shared first task included
    model: Stack  # with the weights it ended with

    @property
    def final_accuracy(self) -> Array:
        return metrics.final_accuracy(self.accuracy)

    @property
    def average_accuracy(self) -> Array:
        return metrics.average_accuracy(self.accuracy)

    @property
    def forgetting(self) -> Array:
        return metrics.forgetting(self.accuracy)

    @property
    def backward_transfer(self) -> Array:
        return metrics.backward_transfer(self.accuracy)

    @property
    def forward_transfer(self) -> Array:
        return metrics.forward_transfer(self.accuracy)
