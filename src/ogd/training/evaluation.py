"""Accuracy of every run on the tasks' test examples."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ogd.benchmarks import Task
from ogd.benchmarks.batch import head
from ogd.models import StackedMLP

BATCH = 1000


def evaluate(model: StackedMLP, tasks: Sequence[Task], columns: Sequence[Tensor | None]) -> npt.NDArray[np.float64]:
    """Return the accuracy (R, tasks), a fraction, of every run on every task's whole test set."""
    return np.stack([_accuracy(model, task, order) for task, order in zip(tasks, columns, strict=True)], axis=1)


@torch.no_grad()
def _accuracy(model: StackedMLP, task: Task, columns: Tensor | None) -> npt.NDArray[np.float64]:
    first, bias = model.weights[0], head(task, model.sizes[-1])
    if columns is not None:
        # x[:, π] Wᵀ = x (W[:, π⁻¹])ᵀ: permuting the weights once spares permuting every image for every run
        inverse = columns.argsort(1)[:, None].expand_as(first)
        first = first.gather(2, inverse)
    right = torch.zeros(len(model.runs), dtype=torch.long)
    for x, y in zip(torch.split(task.test.x, BATCH), torch.split(task.test.y, BATCH), strict=True):
        z = torch.matmul(x.to(first.dtype), first.mT) + model.biases[0][:, None]  # (R, B, out)
        for weight, b in model.layers[1:]:
            z = torch.baddbmm(b[:, None], z.relu_(), weight.mT)
        right += ((z if bias is None else z + bias).argmax(-1) == y).sum(1)
    return right.numpy() / len(task.test)
