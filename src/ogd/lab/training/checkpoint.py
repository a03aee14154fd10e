"""Where an interrupted training resumes: weights of every finished task; weights, optimizer, method of the last epoch.

What a method keeps of finished tasks is not in it. Every draw comes from (seed, run, purpose), so that it is a function
of the weights its tasks ended with, and calling `end_task` once more with each of them gives it back, bit by bit.
"""

import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ogd import tensor_files
from ogd.checks import is_whole
from ogd.json_files import items, number, shorten, whole
from ogd.lab.records.metrics import Array
from ogd.visible_text import visible

SCHEMA = 4
PATIENCE = 5.0  # seconds between two checkpoints

Weights = dict[str, Tensor]  # by the names of a stack's parameters


@dataclass
class History:
    """Accuracies so far, the weights every finished task ended with, and those of the last whole epoch."""

    finished: list[Weights] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)  # after `epoch` epochs of the present task; none at its start
    optimizer: dict[str, Tensor] = field(default_factory=dict)  # its state then, or that it brings from the last task
    method: dict[str, Tensor] = field(default_factory=dict)  # what the steps of the present task changed in it
    epoch: int = 0
    accuracy: list[Array] = field(default_factory=list)  # (R, tasks), a row of the matrix
    curve_steps: list[int] = field(default_factory=list)
    curve: list[Array] = field(default_factory=list)  # (R, tasks), a point
    seconds: float = 0.0


class Checkpoint:
    """A file that `train` writes after a task or an epoch, at most every five seconds, and resumes from.

    `identity` names the training: what its result depends on, such as the data, besides the schedule, the method's
    options and the names of the tasks, which are kept with it. A file of another training is not used, and written
    over. The caller deletes the file.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from ogd.lab import benchmarks, models, training
        >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(20) % 4 // 2
        >>> benchmark = benchmarks.from_datasets([((x, y), (x, y))])
        >>> with TemporaryDirectory() as folder:
        ...     checkpoint = training.Checkpoint(f"{folder}/mine.safetensors", identity="corners, version 1")
        ...     result = training.train(benchmark, models.StackedMLP((4, 8, 2)), lr=0.5, checkpoint=checkpoint)
    """

    def __init__(self, path: str | os.PathLike[str], identity: str) -> None:
        if not isinstance(identity, str):
            raise TypeError(f"identity: must be a text that names the training, not {identity!r}")
        self.path, self.identity = Path(path), identity
        self.last = time.monotonic()
        self.failed = False

    def of(self, training: str) -> "Checkpoint":
        """Return the same file for a training that is described more closely."""
        return Checkpoint(self.path, f"{self.identity} | {training}")

    def read(self, like: History, tasks: int, *, finite: bool = True) -> History | None:
        """Return what was kept for weights and an optimizer `like` these; None where nothing can be used.

        Weights that are not finite are of no use, unless `finite` is false.
        """
        try:
            about, tensors = tensor_files.read(self.path, "ogd")
            if about["schema"] != SCHEMA or about["identity"] != self.identity:
                raise ValueError("it belongs to another training run")
            if about[tensor_files.DIGEST] is None:
                raise ValueError("it has no digest")
            history = _unpacked(tensors, about)
            _check(history, like, tasks, finite)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            warnings.warn(visible(f"{self.path} cannot be used, starting over: {shorten(error)}"), stacklevel=2)
            return None
        return history

    def write(self, history: History) -> None:
        """Write a history, unless the last one is only seconds old. A full disk does not stop the training."""
        now = time.monotonic()
        if now - self.last < PATIENCE:
            return
        self.last = now
        tensors, about = _packed(history)
        about = {"schema": SCHEMA, "identity": self.identity, **about}
        try:
            tensor_files.write(self.path, "ogd", about, tensors)
        except OSError as error:
            if not self.failed:
                warnings.warn(visible(f"{self.path} cannot be written, continuing without it: {error}"), stacklevel=2)
            self.failed = True


def _packed(history: History) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"weights/{name}": w for name, w in history.weights.items()}
    tensors |= {f"optimizer/{name}": t for name, t in history.optimizer.items()}
    tensors |= {f"method/{name}": t for name, t in history.method.items()}
    for t, weights in enumerate(history.finished):
        tensors |= {f"finished/{t}/{name}": w for name, w in weights.items()}
    for name in ("accuracy", "curve"):
        rows: list[Array] = getattr(history, name)
        if rows:
            tensors[name] = torch.from_numpy(np.stack(rows))
    about = {name: getattr(history, name) for name in ("epoch", "curve_steps", "seconds")}
    return {name: t.contiguous() for name, t in tensors.items()}, {**about, "finished": len(history.finished)}


def _unpacked(tensors: dict[str, Tensor], about: dict[str, Any]) -> History:
    def stored(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

    def rows(name: str) -> list[Array]:
        return list(tensors[name].numpy()) if name in tensors else []

    if not is_whole(about["finished"]) or about["finished"] > len(tensors):
        raise ValueError(f"it says that {about['finished']!r} tasks are finished")
    return History(
        finished=[stored(f"finished/{t}/") for t in range(about["finished"])],
        weights=stored("weights/"),
        optimizer=stored("optimizer/"),
        method=stored("method/"),
        epoch=whole(about["epoch"], "epoch"),
        accuracy=rows("accuracy"),
        curve_steps=[whole(step, "curve_steps", 1) for step in items(about["curve_steps"], "curve_steps")],
        curve=rows("curve"),
        seconds=number(about["seconds"], "seconds", 0),
    )


def _check(history: History, like: History, tasks: int, finite: bool) -> None:
    """Raise a ValueError unless the history is one of a model and an optimizer `like` these and of so many tasks."""
    pairs = [(weights, like.weights) for weights in history.finished]
    if history.epoch:
        pairs += [(history.weights, like.weights), (history.method, like.method)]
    if history.epoch or history.optimizer:
        pairs.append((history.optimizer, like.optimizer))
    for stored, own in pairs:
        if {name: (t.shape, t.dtype) for name, t in stored.items()} != {n: (t.shape, t.dtype) for n, t in own.items()}:
            raise ValueError("its weights have other shapes")
        if finite and not all(tensor_files.is_finite(t) for t in stored.values()):
            raise ValueError("its weights are not finite")
    runs = len(next(iter(like.weights.values())))
    points = [*history.accuracy, *history.curve]
    if len(history.curve) != len(history.curve_steps) or any(p.shape != (runs, tasks) for p in points):
        raise ValueError("its accuracies have other shapes")
    if not all(bool((np.isnan(p) | ((p >= 0) & (p <= 1))).all()) for p in points):  # NaN: of a task to come
        raise ValueError("its accuracies are not fractions")
    left = tasks - len(history.finished) - bool(history.epoch)
    if len(history.accuracy) != len(history.finished) + 1 or not left >= 0:
        raise ValueError(f"it has {len(history.accuracy)} accuracies after {len(history.finished)} of {tasks} tasks")
