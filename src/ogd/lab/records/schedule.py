"""How long, how fast and in which order: what training depends on besides benchmark, model and method."""

import math
from dataclasses import dataclass

from ogd.checks import check_name, check_whole, is_number

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class Schedule:
    """Checked on creation. These defaults are the paper's, and the only ones: everything else refers to them."""

    epochs: int = 5
    batch_size: int = 10
    lr: float = 1e-3
    optimizer: str = "sgd"
    momentum: float = 0.0  # of sgd
    keep_optimizer: bool = False  # adam: its moments go on from one task to the next
    seed: int = 0
    curve_every: int | None = None  # steps between two points of the training curves

    def __post_init__(self) -> None:
        check_whole(1, epochs=self.epochs, batch_size=self.batch_size)
        check_whole(1, optional=("curve_every",), curve_every=self.curve_every)
        check_whole(0, seed=self.seed)
        check_name("optimizer", self.optimizer, OPTIMIZERS)
        if not is_number(self.lr) or self.lr <= 0:
            raise ValueError(f"lr: must be a positive number, not {self.lr!r}")
        if not is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: must be a number of at least 0 and below 1, not {self.momentum!r}")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum: is for optimizer 'sgd', not {self.optimizer!r}")
        if not isinstance(self.keep_optimizer, bool):
            raise ValueError(f"keep_optimizer: must be True or False, not {self.keep_optimizer!r}")
        if self.keep_optimizer and self.optimizer != "adam":
            raise ValueError(f"keep_optimizer: is for optimizer 'adam', not {self.optimizer!r}")

    def steps(self, *examples: int) -> int:
        """How many steps tasks of so many training examples take."""
        return self.epochs * sum(self.steps_per_epoch(n) for n in examples)

    def steps_per_epoch(self, examples: int) -> int:
        return math.ceil(examples / self.batch_size)
