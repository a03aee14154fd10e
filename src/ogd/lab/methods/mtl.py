"""MTL: multi-task learning, which keeps all data; an upper bound rather than a rival."""

from collections.abc import Sequence

from ogd.lab.benchmarks import Task
from ogd.lab.methods.method import Method


class MTL(Method):
    """Every batch is drawn uniformly from the union of the tasks seen so far.

    It takes as many steps per task as the other methods, so in an epoch of task t it sees 1/t of that task's data.

    Examples:
        >>> MTL().name
        'mtl'
    """

    name = "mtl"

    def examples(self, seen: Sequence[Task]) -> Sequence[Task]:
        return seen
