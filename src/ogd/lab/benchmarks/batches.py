"""Batches for R runs at once: which examples each run sees, in which order, and under which head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ogd.lab.benchmarks.task import Examples, Task

CHUNK = 160  # examples per run that are gathered at once: enough to hide Python, few enough to stay in cache


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


def chunks(
    tasks: Sequence[Task], index: Tensor, columns: Sequence[Tensor | None], outputs: int, size: int
) -> Iterator[Batch]:
    """Yield the examples of some whole batches of `size` at once.

    `index` (R, n) counts through the training examples of `tasks`, end to end. Chunks share memory: use one before
    asking for the next.
    """
    ends = torch.tensor([len(task.train) for task in tasks]).cumsum(0)
    one_hot, heads = torch.eye(outputs), [head(task, outputs) for task in tasks]
    length = min(max(CHUNK // size, 1) * size, index.shape[1])
    first = tasks[0].train.x
    rows = first.new_empty(len(index) * length if len(tasks) == 1 else 0, *first.shape[1:])
    for start in range(0, index.shape[1], length):
        chunk = index[:, start : start + length].contiguous()
        if len(tasks) == 1:
            x, y, mask = draw(tasks[0].train, chunk, columns[0], rows), tasks[0].train.y[chunk], heads[0]
        else:
            x, y, mask = _mixed(tasks, chunk, columns, heads, ends)
        yield Batch(x, one_hot[y], mask)


def _mixed(
    tasks: Sequence[Task],
    index: Tensor,
    columns: Sequence[Tensor | None],
    heads: Sequence[Tensor | None],
    ends: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gather examples of several tasks, each under its own task's permutation and head."""
    owner = torch.bucketize(index, ends, right=True)  # (R, n): whose example it is
    x = tasks[0].train.x.new_empty(*index.shape, *tasks[0].train.x.shape[1:])
    y = torch.empty_like(index)
    for t, task in enumerate(tasks):
        mine = owner == t
        local = index[mine] - (ends[t] - len(task.train))
        rows = task.train.x.index_select(0, local)
        order_of_columns = columns[t]
        if order_of_columns is not None:
            rows = rows.flatten(1).gather(1, order_of_columns[mine.nonzero()[:, 0]]).view(rows.shape)
        x[mine] = rows
        y[mine] = task.train.y[local]
    if all(bias is None for bias in heads):
        return x, y, None
    width = next(len(bias) for bias in heads if bias is not None)
    table = torch.stack([torch.zeros(width) if bias is None else bias for bias in heads])  # (tasks, C)
    return x, y, table[owner]
