"""A benchmark is a sequence of tasks, and a task is made of tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs `x` (n, d), float32, and labels `y` (n,), int64."""

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
        """Return the order (R, d) in which each run sees the inputs' columns; None where it is the stored one."""
        return None


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A named sequence of tasks over the same inputs (d of them) and outputs (one logit a class)."""

    name: str
    tasks: tuple[Task, ...]
    inputs: int
    outputs: int

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        names = ", ".join(task.name for task in self.tasks)
        return f"Benchmark({self.name}: {names}; {self.inputs} inputs, {self.outputs} outputs)"


def pixels(images: npt.NDArray[np.uint8]) -> Tensor:
    """Return images (n, height, width) as floats between 0 and 1."""
    return torch.from_numpy(images.astype(np.float32)).div_(255)


def labels(values: npt.NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
