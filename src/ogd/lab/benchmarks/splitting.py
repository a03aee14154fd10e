"""Split: the classes divided among the tasks (Zenke et al., 2017; section 4.3 of the paper)."""

import torch

from ogd.lab import data
from ogd.lab.benchmarks.partition import name, resolve_partition
from ogd.lab.benchmarks.task import Benchmark, Examples, Task, images
from ogd.lab.records.request import Partition


def split(
    tasks: int | None = None,
    *,
    partition: str | Partition | None = None,
    heads: str = "multi",
    scale: str = "unit",
    left_out: int = 0,
    dataset: data.Dataset | None = None,
) -> Benchmark:
    """Make Split MNIST: task t has the examples of its own classes only.

    With `heads="multi"` the softmax runs over the task's classes, which is one head per task; with `"single"` it
    runs over all of them. `partition` is written as `01/23/45/67/89` or `random:SEED`, or as tuples of classes.
    `scale` and `left_out` are those of `permuted`.

    Examples:
        >>> split(partition="01/23/456789")
        Benchmark(split: 01, 23, 456789; 784 inputs, 10 outputs)
    """
    dataset = dataset or data.load()
    dealt = resolve_partition(tasks, partition, heads, dataset.classes)
    train, test = images(dataset, scale, left_out)
    made = [
        Task(name([part]), _only(train, part), _only(test, part), part if heads == "multi" else None) for part in dealt
    ]
    return Benchmark("split", tuple(made), max(dataset.classes) + 1)


def _only(examples: Examples, classes: tuple[int, ...]) -> Examples:
    kept = torch.isin(examples.y, torch.tensor(classes))
    return Examples(examples.x[kept], examples.y[kept])
