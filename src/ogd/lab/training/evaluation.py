"""The accuracy of every run on the tasks' test examples, and the result of a training, from which metrics derive."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ogd.lab.benchmarks import Task
from ogd.lab.benchmarks.batches import head
from ogd.lab.models.stack import Stack
from ogd.lab.records import metrics
from ogd.lab.records.metrics import Array

BATCH = 1000


@dataclass(frozen=True)
class Result:
    """What came out, for every run: `accuracy` (R, 1 + tasks, tasks), fractions; row i is after i tasks."""

    runs: tuple[int, ...]
    accuracy: Array
    curve_steps: list[int]
    curve: Array  # (R, points, tasks), NaN before a task began
    seconds: float  # all of it, a shared first task included
    model: Stack  # with the weights it ended with

    @property
    def final_accuracy(self) -> Array:
        return metrics.final_accuracy(self.accuracy)

    @property
    def average_accuracy(self) -> Array:
        return metrics.average_accuracy(self.accuracy)

    @property
    def forgetting(self) -> Array:
        return metrics.forgetting(self.accuracy)

    @property
    def backward_transfer(self) -> Array:
        return metrics.backward_transfer(self.accuracy)

    @property
    def forward_transfer(self) -> Array:
        return metrics.forward_transfer(self.accuracy)


def evaluate(model: Stack, tasks: Sequence[Task], outputs: int) -> Array:
    """Return the accuracy (R, tasks), a fraction, of every run on every task's whole test set."""
    return np.stack([_accuracy(model, task, outputs) for task in tasks], axis=1)


def _accuracy(model: Stack, task: Task, outputs: int) -> Array:
    columns, bias = task.columns(model.runs), head(task, outputs)
    right = torch.zeros(len(model.runs), dtype=torch.long)
    for x, y in zip(torch.split(task.test.x, BATCH), torch.split(task.test.y, BATCH), strict=True):
        z = model.logits(x, columns)  # (R, B, C)
        right += ((z if bias is None else z + bias).argmax(-1) == y).sum(1)
    return right.numpy() / len(task.test)
