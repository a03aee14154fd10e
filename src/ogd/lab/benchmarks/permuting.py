"""Permuted: a fixed random order of the pixels per task (Goodfellow et al., 2013; section 4.1 of the paper)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ogd import seeds
from ogd.checks import check_whole
from ogd.lab import data
from ogd.lab.benchmarks.rules import TASKS
from ogd.lab.benchmarks.task import Benchmark, Task, images


@dataclass(frozen=True, eq=False)
class PermutedTask(Task):
    """All tasks share the same tensors; each run applies its own permutation by index."""

    number: int = 0
    seed: int = 0

    def columns(self, runs: Sequence[int]) -> Tensor:
        d, purpose = self.train.x[0].numel(), f"permutation/{self.number}"
        return torch.stack([torch.randperm(d, generator=seeds.generator(self.seed, r, purpose)) for r in runs])


def permuted(
    tasks: int = TASKS,
    *,
    seed: int = 0,
    scale: str = "unit",
    left_out: int = 0,
    dataset: data.Dataset | None = None,
) -> Benchmark:
    """Make Permuted MNIST: run r of task t sees x[:, π_rt], π_rt a permutation drawn from (seed, r, t).

    `scale="standard"` gives the training pixels mean 0 and standard deviation 1; the first `left_out` training images
    are not used.

    Examples:
        >>> permuted(tasks=3)
        Benchmark(permuted: task 1, task 2, task 3; 784 inputs, 10 outputs)
    """
    check_whole(1, tasks=tasks)
    dataset = dataset or data.load()
    train, test = images(dataset, scale, left_out)
    made = [PermutedTask(f"task {t}", train, test, number=t, seed=seed) for t in range(1, tasks + 1)]
    return Benchmark("permuted", tuple(made), max(dataset.classes) + 1)
