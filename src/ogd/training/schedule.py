"""How long, how fast and in which order: what training depends on besides benchmark, model and method."""

import math
from dataclasses import dataclass

from ogd.benchmarks import Task
from ogd.records.request import at_least, check_rates


@dataclass(frozen=True)
class Schedule:
    """Checked on creation; the defaults are the paper's."""

    epochs: int = 5
    batch_size: int = 10
    lr: float = 1e-3
    momentum: float = 0.0
    seed: int = 0
    curve_every: int | None = None

    def __post_init__(self) -> None:
        at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        at_least(1, optional=("curve_every",), curve_every=self.curve_every)
        at_least(0, seed=self.seed)
        check_rates(self.lr, self.momentum)

    def steps(self, *tasks: Task) -> int:
        """How many steps these tasks take."""
        return self.epochs * sum(self.steps_an_epoch(task) for task in tasks)

    def steps_an_epoch(self, task: Task) -> int:
        return math.ceil(len(task.train) / self.batch_size)
