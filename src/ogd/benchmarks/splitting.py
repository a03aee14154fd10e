"""Split: the classes dealt out over the tasks (Zenke et al., 2017; section 4.3 of the paper)."""

import torch

from ogd import data
from ogd.benchmarks.partition import name, resolve_partition
from ogd.benchmarks.task import Benchmark, Examples, Task, labels, pixels
from ogd.records.request import Partition


def split(
    tasks: int | None = None,
    *,
    partition: str | Partition | None = None,
    heads: str = "multi",
    dataset: data.Dataset | None = None,
) -> Benchmark:
    """Make Split MNIST: task t has the examples of its own classes only.

    With `heads="multi"` the softmax runs over the task's classes, which is one head per task; with `"single"` it
    runs over all of them. `partition` is written as `01/23/45/67/89` or `random:SEED`, or as tuples of classes.

    Examples:
        >>> split(partition="01/23/456789")
        Benchmark(split: 01, 23, 456789; 784 inputs, 10 outputs)
    """
    dataset = dataset or data.load()
    dealt = resolve_partition(tasks, partition, heads, dataset.classes)
    train = Examples(pixels(dataset.train_images), labels(dataset.train_labels))
    test = Examples(pixels(dataset.test_images), labels(dataset.test_labels))
    made = [
        Task(name([part]), _only(train, part), _only(test, part), part if heads == "multi" else None) for part in dealt
    ]
    return Benchmark("split", tuple(made), max(dataset.classes) + 1)


def _only(examples: Examples, classes: tuple[int, ...]) -> Examples:
    kept = torch.isin(examples.y, torch.tensor(classes))
    return Examples(examples.x[kept], examples.y[kept])
