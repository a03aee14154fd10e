"""Rehearsal as `ogd.ExampleMemory` does it: the same loss, the same draws and the same defaults.

The loss is that of DER++. A batch is drawn without replacement, batch number j by (seed of the run, "rehearsal", j). By
default every second step takes one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd import seeds
from ogd.lab.catalogue.methods import (
    CHOOSE,
    IN_TOTAL,
    MERGE,
    PER_TASK,
    REHEARSAL_ALPHA,
    REHEARSAL_BATCH,
    REHEARSAL_EVERY,
)
from ogd.lab.methods.buffer import Buffer
from ogd.lab.methods.der import DER
from ogd.memory.examples.prefetch import draw


class RehearsedBuffer(Buffer):
    """Draws batches as an `ExampleMemory` does, whose seed is `run_seed`."""

    every = 1  # steps that share a rehearsal

    def rows(self, step: int, n: int) -> Tensor:
        number = (step - self.began + 1) // self.every - 1
        return torch.stack([draw(self.run_seed(run), number, n, self.batch) for run in self.runs])

    def run_seed(self, run: int) -> int:
        return seeds.number(self.seed, run, "rehearsal")


class Rehearsal(DER):
    """DER++ with the draws and the defaults of `ogd.ExampleMemory`.

    Examples:
        >>> Rehearsal().replay_batch, Rehearsal().replay_every
        (32, 2)
    """

    name = "rehearsal"

    def __init__(
        self,
        per_task: int = PER_TASK.default,
        replay_batch: int = REHEARSAL_BATCH.default,
        alpha: float | Sequence[float] = REHEARSAL_ALPHA.default,
        replay_every: int = REHEARSAL_EVERY.default,
        in_total: int = IN_TOTAL.default,
        choose: str = CHOOSE.default,
        merge: int = MERGE.default,
    ) -> None:
        super().__init__(per_task, replay_batch, alpha, replay_every, in_total, choose, merge)

    def __repr__(self) -> str:
        return f"rehearsal (α = {', '.join(f'{a:g}' for a in self.alpha)})"

    def make_buffer(self) -> Buffer:
        buffer = RehearsedBuffer(**self.buffer_options())
        buffer.every = self.replay_every
        return buffer
