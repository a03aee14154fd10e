"""Rehearsal as `ogd.ExampleMemory` does it: the same loss, the same draws, the same bound and the same defaults.

The loss is that of DER++ with a distance that grows linearly in the end (`ogd.memory.examples.loss`). A batch is drawn
without replacement, batch number j by (seed of the run, "rehearsal", j). By default every second step takes one. Its
gradient is scaled down where the whole step would be longer than `bound` times the longest recent gradient of the new
task, or where a step of SGD would overshoot (`ogd.memory.optimizers.gradient_bound`).
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
    REHEARSAL_BOUND,
    REHEARSAL_EVERY,
)
from ogd.lab.methods.buffer import Buffer, StoredBatch
from ogd.lab.methods.der import DER, distance_gradient
from ogd.lab.methods.er import ER
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.method import Constraint, per_run, stack_values
from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import SGD, Optimizer
from ogd.memory.examples.loss import DELTA, robust_distance
from ogd.memory.examples.prefetch import draw
from ogd.memory.optimizers.gradient_bound import bounding_scale, descent_scale, recent_norm, sgd_rate


class RehearsedBuffer(Buffer):
    """Draws batches as an `ExampleMemory` does, whose seed is `run_seed`."""

    every = 1  # steps that share a rehearsal

    def rows(self, step: int, n: int) -> Tensor:
        number = (step - self.began + 1) // self.every - 1
        return torch.stack([draw(self.run_seed(run), number, n, self.batch) for run in self.runs])

    def run_seed(self, run: int) -> int:
        return seeds.number(self.seed, run, "rehearsal")


class Rehearsal(DER):
    """DER++ with the draws, the bound and the defaults of `ogd.ExampleMemory`.

    α and the bound are one number each, or one per run; a bound of 0 stands for none.

    Examples:
        >>> Rehearsal().replay_batch, Rehearsal().replay_every
        (16, 2)
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
        bound: float | Sequence[float] = REHEARSAL_BOUND.default,
    ) -> None:
        super().__init__(per_task, replay_batch, alpha, replay_every, in_total, choose, merge)
        self.bound = per_run(REHEARSAL_BOUND, bound)

    def __repr__(self) -> str:
        return f"rehearsal (α = {', '.join(f'{a:g}' for a in self.alpha)})"

    def make_buffer(self) -> Buffer:
        buffer = RehearsedBuffer(**self.buffer_options())
        buffer.every = self.replay_every
        return buffer

    def begin(self, model: Stack, seed: int) -> None:
        super().begin(model, seed)
        bound = stack_values(REHEARSAL_BOUND, self.bound, model)
        self._bound = torch.where(bound > 0, bound, torch.inf)
        self._norm = torch.zeros(len(model.runs), dtype=model.dtype)  # the largest recent |g|

    def constraint(self, optimizer: Optimizer) -> Constraint:
        self._rate = sgd_rate(optimizer.lr, optimizer.momentum) if isinstance(optimizer, SGD) else 0.0
        return super().constraint(optimizer)

    def end_task(self, finished: FinishedTask) -> None:
        super().end_task(finished)
        self._norm = torch.zeros_like(self._norm)

    def replayed(self, z: Tensor, batch: StoredBatch) -> Tensor:
        pull = distance_gradient(z, batch)
        m = pull.square().sum(-1, keepdim=True) * (z.shape[1] / 2) ** 2 * _outputs(batch)  # mean_c (z_c − z*_c)²
        self._loss = (_entropies(z, batch) + self._alpha * robust_distance(m)).mean((1, 2))
        return ER.replayed(self, z, batch).add_(self._alpha * pull / (1 + m / DELTA**2).sqrt())

    def join(self, gradient: Gradient, replay: Gradient) -> Gradient:
        self._norm = recent_norm(self._norm, _length(gradient))
        own, added = (_length(one) for one in (gradient, replay))
        scale = bounding_scale(self._norm, own, added, gradient.dot(replay), self._bound)
        if self._rate:
            descent = descent_scale(self._loss, self._rate * added.square(), self.replay_every)
            scale = torch.where(self._bound.isfinite(), torch.minimum(scale, descent), scale)
        return gradient.plus(replay, scale)

    def state(self) -> dict[str, Tensor]:
        return {"norm": self._norm}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._norm = state["norm"]


def _entropies(z: Tensor, batch: StoredBatch) -> Tensor:
    """Return the cross-entropy (R, B, 1) of each example under its own head."""
    shown = z if batch.head is None else z + batch.head
    return shown.logsumexp(-1, keepdim=True) - (z * batch.target).sum(-1, keepdim=True)


def _outputs(batch: StoredBatch) -> Tensor:
    """Return the number of logits of each example's own head."""
    assert batch.head is not None
    return batch.head.isfinite().sum(-1, keepdim=True)


def _length(gradient: Gradient) -> Tensor:
    return gradient.dot(gradient).clamp(min=0).sqrt()  # rounding can make a dot product of factors negative
