"""Tasks → batches: which examples each run sees, in which order."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ogd.lab.benchmarks import Task
from ogd.lab.benchmarks.batch import Batch, draw, head

CHUNK = 160  # examples per run that are gathered at once: enough to hide Python, few enough to stay in cache


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
