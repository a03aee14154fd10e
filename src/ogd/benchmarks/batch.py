"""How examples are drawn for R runs at once, and what they are scored by."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ogd.benchmarks.task import Examples, Task


@dataclass(frozen=True)
class Batch:
    """Examples for every run: inputs, one-hot targets, and 0 or −∞ for each logit inside or outside the head."""

    x: Tensor  # (R, B, d)
    target: Tensor  # (R, B, C)
    head: Tensor | None  # (C,) or (R, B, C); None: all logits

    def split(self, size: int) -> Iterator["Batch"]:
        """Yield batches of `size` examples a run; the last may be smaller."""
        for start in range(0, self.x.shape[1], size):
            yield self._part(slice(start, start + size))

    def _part(self, part: slice) -> "Batch":
        head = self.head[:, part] if self.head is not None and self.head.ndim == 3 else self.head
        return Batch(self.x[:, part], self.target[:, part], head)


def draw(source: Examples, index: Tensor, columns: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return each run's inputs: x[r, i] = source.x[index[r, i], columns[r]], for index (R, n) and columns (R, d).

    `out` (≥ R·n, d) takes the rows: in a loop a fresh tensor would cost more in page faults than the copy.
    """
    n, d = index.numel(), source.x.shape[1]
    rows = None if out is None else out[:n]
    x = torch.index_select(source.x, 0, index.reshape(-1), out=rows).view(*index.shape, d)  # (R, n, d)
    return x if columns is None else x.gather(2, columns[:, None].expand_as(x))


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
