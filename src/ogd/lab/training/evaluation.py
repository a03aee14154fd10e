"""Accuracy of every run on the tasks' test examples."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ogd.lab.benchmarks import Task
from ogd.lab.benchmarks.batch import head
from ogd.lab.models.stack import Stack

BATCH = 1000


def evaluate(model: Stack, tasks: Sequence[Task], outputs: int) -> npt.NDArray[np.float64]:
    """Return the accuracy (R, tasks), a fraction, of every run on every task's whole test set."""
    return np.stack([_accuracy(model, task, outputs) for task in tasks], axis=1)


def _accuracy(model: Stack, task: Task, outputs: int) -> npt.NDArray[np.float64]:
    columns, bias = task.columns(model.runs), head(task, outputs)
    right = torch.zeros(len(model.runs), dtype=torch.long)
    for x, y in zip(torch.split(task.test.x, BATCH), torch.split(task.test.y, BATCH), strict=True):
        z = model.logits(x, columns)  # (R, B, C)
        right += ((z if bias is None else z + bias).argmax(-1) == y).sum(1)
    return right.numpy() / len(task.test)
