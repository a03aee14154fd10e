"""A benchmark is a sequence of tasks, and a task is made of tensors, for example of a data set's images."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ogd.checks import check_name
from ogd.lab import catalogue
from ogd.lab.benchmarks.rules import check_left_out
from ogd.lab.catalogue.benchmarks import SCALES
from ogd.lab.data import Dataset
from ogd.lab.records import Request


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs `x` (n, …), an image as (channels, height, width), and labels `y` (n,), int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Task:
    """Something to learn: examples to train and to test on, and the classes of its head (None: all of them)."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[int, ...] | None = None

    def columns(self, runs: Sequence[int]) -> Tensor | None:
        """Return the order (R, d) in which each run sees an input's d numbers; None where it is the stored one."""
        return None


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A named sequence of tasks over inputs of one shape and the same outputs, one logit per class."""

    name: str
    tasks: tuple[Task, ...]
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.tasks[0].train.x.shape[1:])

    @property
    def inputs(self) -> int:
        """How many numbers an input has."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        names = ", ".join(task.name for task in self.tasks)
        return f"Benchmark({self.name}: {names}; {self.inputs} inputs, {self.outputs} outputs)"


def make_benchmark(request: Request, dataset: Dataset) -> Benchmark:
    """Make the benchmark that a request names."""
    return _benchmark(request.benchmark, dataset, tuple(request.benchmark_arguments.items()))


@lru_cache(maxsize=1)  # neighbouring requests mostly share it, and one takes up to 1 GB
def _benchmark(name: str, dataset: Dataset, said: tuple[tuple[str, Any], ...]) -> Benchmark:
    make = catalogue.BENCHMARKS[name].load()
    takes = inspect.signature(make).parameters
    made: Benchmark = make(dataset=dataset, **{key: value for key, value in said if key in takes})
    return made


def pixels(images: npt.NDArray[np.uint8]) -> Tensor:
    """Return images (n, height, width), or with channels as floats between 0 and 1: (n, c, height, width)."""
    x = torch.from_numpy(images.astype(np.float32)).div_(255)
    return x if x.ndim == 4 else x.unsqueeze(1)


def labels(values: npt.NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def images(
    dataset: Dataset, scale: str, left_out: int, change: Callable[[Tensor], Tensor] | None = None
) -> tuple[Examples, Examples]:
    """Return the examples to train and to test on, without the first `left_out` to train on.

    With `scale="unit"` pixels are between 0 and 1; with `"standard"` the training pixels have mean 0 and standard
    deviation 1. `change` comes before that, so that a rotation fills in black.
    """
    check_name("scale", scale, SCALES)
    check_left_out(left_out, dataset)
    train, test = pixels(dataset.train_images[left_out:]), pixels(dataset.test_images)
    mean, std = (float(train.mean()), float(train.std())) if scale == "standard" else (0.0, 1.0)

    def seen(x: Tensor) -> Tensor:
        x = x if change is None else change(x)
        return x if scale == "unit" else (x - mean) / std

    y_train, y_test = labels(dataset.train_labels[left_out:]), labels(dataset.test_labels)
    return Examples(seen(train), y_train), Examples(seen(test), y_test)
