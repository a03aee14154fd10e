"""The baselines: SGD, a lower bound, and multi-task learning (MTL), an upper bound that keeps all data."""

from collections.abc import Sequence

from ogd.lab.benchmarks import Task
from ogd.lab.methods.method import Method


class SGD(Method):
    """Trains one task after the other and does nothing against forgetting.

    Examples:
        >>> SGD().name
        'sgd'
    """

    name = "sgd"


class MTL(Method):
    """Draws every batch uniformly from the union of the tasks seen so far.

    It takes as many steps per task as the other methods, so in an epoch of task t it sees 1/t of that task's data.

    Examples:
        >>> MTL().name
        'mtl'
    """

    name = "mtl"

    def examples(self, seen: Sequence[Task]) -> Sequence[Task]:
        return seen
