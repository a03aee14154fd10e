"""The accuracy of every run on the tasks' test examples, which runs are dead, and the result of a training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ogd.lab.benchmarks import Task
from ogd.lab.benchmarks.batches import head
from ogd.lab.models.stack import Stack
from ogd.lab.records import metrics
from ogd.lab.records.metrics import Array

BATCH = 1000
ROUNDING = 1e-5  # relative to the largest logit of an input


@dataclass(frozen=True)
class Result:
    """What came out, for every run: `accuracy` (R, 1 + tasks, tasks), fractions; row i is after i tasks."""

    runs: tuple[int, ...]
    accuracy: Array
    curve_steps: list[int]
    curve: Array  # (R, points, tasks), NaN before a task began
    seconds: float  # all of it, a shared first task included
    model: Stack  # with the weights it ended with
    dead: npt.NDArray[np.bool_]  # (R,); see `find_dead`

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


def find_dead(model: Stack, tasks: Sequence[Task], outputs: int) -> npt.NDArray[np.bool_]:
    """Return which runs (R,) are dead: on every task most test inputs have the same logits, to rounding.

    That is so if the units of a layer are off or saturated, though a few inputs may still reach one of them. A model
    that lives has other logits for other inputs, even if it predicts one class for all, at chance or because that class
    is new. At most 1000 different inputs of a task count, and no task whose test set has only one label.
    """
    dead, judged = np.ones(len(model.runs), dtype=np.bool_), False
    for task in tasks:
        x = task.test.x[:BATCH].unique(dim=0)
        if len(x) > 1 and len(task.test.y.unique()) > 1:
            z = model.logits(x, task.columns(model.runs))[..., list(task.classes or range(outputs))]  # (R, B, c)
            median = z.median(1, keepdim=True).values  # the logits of most inputs, where most have the same
            same = (z - median).abs() <= ROUNDING * median.abs().amax(-1, keepdim=True)
            dead &= (same.all(-1).float().mean(1) > 0.5).numpy()
            judged = True
        if not dead.any():  # as a rule after the first task
            break
    return dead & judged


def _accuracy(model: Stack, task: Task, outputs: int) -> Array:
    columns, bias = task.columns(model.runs), head(task, outputs)
    right = torch.zeros(len(model.runs), dtype=torch.long)
    for x, y in zip(torch.split(task.test.x, BATCH), torch.split(task.test.y, BATCH), strict=True):
        z = model.logits(x, columns)  # (R, B, C)
        right += ((z if bias is None else z + bias).argmax(-1) == y).sum(1)
    return right.numpy() / len(task.test)
