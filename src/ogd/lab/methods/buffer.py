"""Examples of finished tasks that a method draws batches from: the one buffer of A-GEM, ER and DER++."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ogd import seeds
from ogd.lab.benchmarks.batches import Batch
from ogd.lab.methods.finished_task import FinishedTask, task_budgets

BLOCK = 1000  # steps whose batches are drawn at once


@dataclass(frozen=True)
class StoredBatch(Batch):
    """Stored examples with the logits `z` (R, B, C) that the model had for them at the end of their task."""

    z: Tensor | None = None

    def each(self, change: Callable[[Tensor, str], Tensor]) -> "StoredBatch":
        """Return the same with every tensor changed, given it and its name."""
        return replace(self, **{name: change(t, name) for name, t in vars(self).items() if t is not None})


class Buffer:
    """Keeps `per_task` examples of every finished task and draws `batch` of them per step, with replacement.

    With `in_total`, it keeps that many of all tasks together instead: each task has an equal share, which shrinks as
    tasks are added. A draw depends on the seed, the run, the task and the step alone, so a killed training resumes
    with the same draws.

    Examples:
        >>> bool(Buffer(per_task=200, batch=10))
        False
    """

    def __init__(
        self,
        per_task: int,
        batch: int,
        *,
        in_total: int = 0,
        outputs: bool = False,
        choose: str = "uniform",
        merge: int = 1,
    ) -> None:
        self.per_task, self.in_total, self.batch, self.outputs = per_task, in_total, batch, outputs
        self.choose, self.merge = choose, merge
        self.stored: StoredBatch | None = None
        self.counts: list[int] = []  # examples of each task
        self.tasks, self.began, self.seed = 0, 0, 0
        self.runs: tuple[int, ...] = ()
        self._block = -1
        self._index = torch.empty(0)  # (R, BLOCK, batch)

    def __bool__(self) -> bool:
        return self.stored is not None

    def add(self, finished: FinishedTask) -> None:
        """Store examples of a finished task, each with its own task's head, and the present logits where wanted."""
        shares = task_budgets(self.per_task, self.in_total, finished.number)
        kept = finished.draw(shares[-1], self.choose, self.merge)
        head = torch.zeros(kept.target.shape[-1]) if kept.head is None else kept.head
        z = finished.model.passing(kept.x)[1] if self.outputs else None
        new = StoredBatch(kept.x, kept.target, head.expand_as(kept.target), z)
        if self.stored is None:
            self.stored, self.began = new, finished.step
        else:
            old, counts = self.stored, self.counts
            self.counts = [min(pair) for pair in zip(counts, shares[:-1], strict=True)]
            rows = _first_of_each(counts, self.counts)
            self.stored = old.each(lambda t, name: torch.cat([t[:, rows], getattr(new, name)], 1))
        self.counts.append(new.x.shape[1])
        self.tasks, self.seed, self.runs = finished.number, finished.seed, finished.model.runs
        self._block = -1  # what was drawn from a smaller buffer is out of date

    def draw(self, step: int) -> StoredBatch:
        """Return the batch of a step, counted since training began."""
        assert self.stored is not None
        index = self.rows(step, self.stored.x.shape[1])
        run = torch.arange(len(index))[:, None]
        return self.stored.each(lambda t, _: t[run, index])

    def rows(self, step: int, n: int) -> Tensor:
        """Return which of n stored examples are in the batch of a step, (R, B)."""
        block, at = divmod(step - self.began, BLOCK)
        if block != self._block:
            draws = [seeds.generator(self.seed, r, f"reference/{self.tasks}/{block}") for r in self.runs]
            self._index = torch.stack([torch.randint(n, (BLOCK, self.batch), generator=g) for g in draws])
            self._block = block
        return self._index[:, at]


def _first_of_each(counts: Sequence[int], kept: Sequence[int]) -> Tensor:
    """Return the rows of the first `kept` examples of each task."""
    starts = [sum(counts[:t]) for t in range(len(counts))]
    return torch.cat([torch.arange(start, start + n) for start, n in zip(starts, kept, strict=True)])
