"""How examples are drawn for R runs at once, and what they are scored by."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ogd.lab.benchmarks.task import Examples, Task


@dataclass(frozen=True)
class Batch:
    """Examples for every run: inputs, one-hot targets, and 0 or −∞ for each logit inside or outside the head."""

    x: Tensor  # (R, B, …)
    target: Tensor  # (R, B, C)
    head: Tensor | None = None  # (C,) or (R, B, C); None: all logits

    def split(self, size: int) -> Iterator["Batch"]:
        """Yield batches of `size` examples per run; the last may be smaller."""
        for start in range(0, self.x.shape[1], size):
            yield self._part(slice(start, start + size))

    def at(self, index: Tensor) -> "Batch":
        """Return some examples of every run, index (R, k), in that order."""
        runs = torch.arange(len(index))[:, None]
        head = self.head[runs, index] if self.head is not None and self.head.ndim == 3 else self.head
        return Batch(self.x[runs, index], self.target[runs, index], head)

    def _part(self, part: slice) -> "Batch":
        head = self.head[:, part] if self.head is not None and self.head.ndim == 3 else self.head
        return Batch(self.x[:, part], self.target[:, part], head)


def draw(source: Examples, index: Tensor, columns: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return each run's inputs (R, n, …): example index[r, i], its numbers in the order columns[r], columns (R, d).

    `out` (≥ R·n, …) takes the rows: in a loop a fresh tensor would cost more in page faults than the copy.
    """
    rows = None if out is None else out[: index.numel()]
    x = torch.index_select(source.x, 0, index.reshape(-1), out=rows).view(*index.shape, *source.x.shape[1:])
    return x if columns is None else in_order(x, columns)


def in_order(x: Tensor, columns: Tensor) -> Tensor:
    """Return inputs (…, n, *shape) with the numbers of each in the order `columns` (…, d)."""
    axes = columns.ndim
    flat = x.flatten(axes)  # (…, n, d)
    return flat.gather(-1, columns.unsqueeze(-2).expand_as(flat)).view(x.shape)


def examples(task: Task, index: Tensor, columns: Tensor | None, outputs: int) -> Batch:
    """Return the training examples `index` (R, n) of one task, to keep."""
    target = torch.eye(outputs)[task.train.y[index]]
    return Batch(draw(task.train, index, columns), target, head(task, outputs))


def head(task: Task, outputs: int) -> Tensor | None:
    """Return what is added to the logits so that the softmax runs over the task's classes only: 0 or −∞."""
    if task.classes is None:
        return None
    bias = torch.full((outputs,), -torch.inf)
    bias[list(task.classes)] = 0
    return bias
