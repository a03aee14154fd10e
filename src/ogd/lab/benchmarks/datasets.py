"""A benchmark of your own data: any sequence of torch Datasets or tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ogd.checks import ArgumentError
from ogd.lab.benchmarks.task import Benchmark, Examples, Task

Source = Dataset[Any] | tuple[Tensor, Tensor]


def from_datasets(
    tasks: Sequence[tuple[Source, Source]],
    *,
    names: Sequence[str] | None = None,
    classes: Sequence[Sequence[int] | None] | None = None,
) -> Benchmark:
    """Make a benchmark of (train, test) pairs, each a torch Dataset of (input, label) or tensors (x, y).

    Inputs keep their shape, and numbers of words (int32, int64) stay whole. `classes` gives a task its own head, as in
    Split.

    Examples:
        >>> x, y = torch.rand(20, 3, 4), torch.arange(20) % 2
        >>> from_datasets([((x, y), (x, y)), ((-x, y), (-x, y))], names=["bright", "dark"])
        Benchmark(own: bright, dark; 12 inputs, 2 outputs)
    """
    if not tasks:
        raise ArgumentError("tasks", "give at least one (train, test) pair")
    named = names or [f"task {number}" for number in range(1, len(tasks) + 1)]
    heads = classes or [None] * len(tasks)
    for argument, given in [("names", named), ("classes", heads)]:
        if len(given) != len(tasks):
            raise ArgumentError(argument, f"{len(given)} of them do not fit {len(tasks)} tasks")
    made = []
    for number, (pair, name, head) in enumerate(zip(tasks, named, heads, strict=True), 1):
        if not isinstance(pair, Sequence) or len(pair) != 2 or any(isinstance(part, Tensor) for part in pair):
            raise ArgumentError("tasks", f"task {number} is not a (train, test) pair of Datasets or (x, y) tensors")
        train, test = (
            _examples(part, f"task {number}'s {what}") for part, what in zip(pair, ("train", "test"), strict=True)
        )
        made.append(Task(name, train, test, None if head is None else tuple(head)))
    return _benchmark(made)


def _examples(source: Source, where: str) -> Examples:
    if isinstance(source, Dataset):
        if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
            raise ArgumentError("tasks", f"{where} data must be a Dataset with a length and items by index")
        items = [source[i] for i in range(len(source))]
        if not items:
            raise ArgumentError("tasks", f"{where} data are empty")
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
        y = torch.stack([torch.as_tensor(item[1]) for item in items])
    else:
        x, y = source
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise ArgumentError("tasks", f"{where} data must be tensors or a Dataset, not {type(x).__name__}")
    if x.ndim < 2 or len(x) != len(y) or y.ndim != 1 or len(y) == 0:
        raise ArgumentError(
            "tasks", f"{where} data need one label per input, not {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if y.is_floating_point() or int(y.min()) < 0:
        raise ArgumentError("tasks", f"{where} labels must be whole numbers from 0")
    x = x.detach()
    x = x if x.dtype in (torch.int32, torch.int64) else x.float()  # numbers of words stay whole
    if not x.isfinite().all():
        raise ArgumentError("tasks", f"{where} inputs are not all finite")
    return Examples(x.contiguous(), y.long())


def _benchmark(tasks: list[Task]) -> Benchmark:
    shapes = {tuple(part.x.shape[1:]) for task in tasks for part in (task.train, task.test)}
    if len(shapes) > 1:
        raise ArgumentError("tasks", f"all inputs must be of one shape, not {' and '.join(map(str, sorted(shapes)))}")
    outputs = 1 + max(int(part.y.max()) for task in tasks for part in (task.train, task.test))
    for task in tasks:
        for part in (task.train, task.test):
            if task.classes is not None and min(task.classes) < 0:
                raise ArgumentError("classes", f"must be whole numbers from 0, not {task.classes}")
            if task.classes is not None and not torch.isin(part.y, torch.tensor(task.classes)).all():
                raise ArgumentError("classes", f"{task.name} has labels outside its head {task.classes}")
        if task.classes is not None:
            outputs = max(outputs, 1 + max(task.classes))
    return Benchmark("own", tuple(tasks), outputs)
