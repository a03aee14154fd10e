"""Where a killed training goes on: the weights at the end of every finished task and of the last whole epoch.

What a method keeps is not in it. Every draw comes from (seed, run, purpose), so that a method's state is a function of
the weights its tasks ended with, and calling `end_task` once more with each of them gives it back, bit by bit.
"""

import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ogd import files
from ogd.records.metrics import Array

SCHEMA = 1
PATIENCE = 5.0  # seconds between two checkpoints


@dataclass
class Snapshot:
    """How far a training is, and all that it takes to go on from there."""

    finished: list[list[Tensor]] = field(default_factory=list)  # the weights at the end of each finished task
    weights: list[Tensor] = field(default_factory=list)  # after `epoch` epochs of the present task; none at its start
    epoch: int = 0
    accuracy: list[Array] = field(default_factory=list)  # (R, tasks) a row of the matrix
    curve_steps: list[int] = field(default_factory=list)
    curve: list[Array] = field(default_factory=list)  # (R, tasks) a point
    seconds: float = 0.0


class Checkpoint:
    """A file that `train` keeps after a task or an epoch, at most every five seconds, and takes up again.

    `identity` names the training: what its result depends on, such as the data, besides the schedule, the method's
    options and the names of the tasks, which are kept with it. A file of another training is not used, and written
    over. Who no longer needs the file removes it.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from ogd import benchmarks, models, training
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

    def read(self, weights: Sequence[Tensor], tasks: int, *, finite: bool = True) -> Snapshot | None:
        """Return what was kept for a model of such weights; None where there is nothing that can be used.

        Weights that are not finite are of no use, unless `finite` is false.
        """
        try:
            with safe_open(self.path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = json.loads((file.metadata() or {})["ogd"])
            if about["schema"] != SCHEMA or about["identity"] != self.identity:
                raise ValueError("it is of another training")
            snapshot = _unpacked(tensors, about)
            _check(snapshot, weights, tasks, finite)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
            warnings.warn(f"{self.path} cannot be used, starting again: {error}", stacklevel=2)
            return None
        return snapshot

    def write(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, unless the last one is only seconds old. A full disk does not stop the training."""
        now = time.monotonic()
        if now - self.last < PATIENCE:
            return
        self.last = now
        tensors, about = _packed(snapshot)
        about = {"schema": SCHEMA, "identity": self.identity, **about}
        try:
            files.write_bytes(self.path, safetensors.torch.save(tensors, {"ogd": json.dumps(about)}))
        except OSError as error:
            if not self.failed:
                warnings.warn(f"{self.path} cannot be written, going on without: {error}", stacklevel=2)
            self.failed = True


def _packed(snapshot: Snapshot) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"weights.{i}": w.contiguous() for i, w in enumerate(snapshot.weights)}
    for t, weights in enumerate(snapshot.finished):
        tensors |= {f"finished.{t}.{i}": w.contiguous() for i, w in enumerate(weights)}
    for name in ("accuracy", "curve"):
        rows: list[Array] = getattr(snapshot, name)
        if rows:
            tensors[name] = torch.from_numpy(np.stack(rows))
    about = {name: getattr(snapshot, name) for name in ("epoch", "curve_steps", "seconds")}
    return tensors, {**about, "finished": len(snapshot.finished)}


def _unpacked(tensors: dict[str, Tensor], about: dict[str, Any]) -> Snapshot:
    def stored(prefix: str) -> list[Tensor]:
        count = sum(name.startswith(prefix) for name in tensors)
        return [tensors[f"{prefix}{i}"] for i in range(count)]

    def rows(name: str) -> list[Array]:
        return list(tensors[name].numpy()) if name in tensors else []

    return Snapshot(
        finished=[stored(f"finished.{t}.") for t in range(int(about["finished"]))],
        weights=stored("weights."),
        epoch=int(about["epoch"]),
        accuracy=rows("accuracy"),
        curve_steps=[int(step) for step in about["curve_steps"]],
        curve=rows("curve"),
        seconds=float(about["seconds"]),
    )


def _check(snapshot: Snapshot, weights: Sequence[Tensor], tasks: int, finite: bool) -> None:
    """Raise a ValueError unless the snapshot is one of a model with such weights and of so many tasks."""
    like = [(w.shape, w.dtype) for w in weights]
    for stored in [*snapshot.finished, *([snapshot.weights] if snapshot.epoch else [])]:
        if [(w.shape, w.dtype) for w in stored] != like:
            raise ValueError("its weights are of other shapes")
        if finite and not all(bool(w.isfinite().all()) for w in stored):
            raise ValueError("its weights are not finite")
    points = [*snapshot.accuracy, *snapshot.curve]
    if len(snapshot.curve) != len(snapshot.curve_steps) or any(p.shape != (len(weights[0]), tasks) for p in points):
        raise ValueError("its accuracies are of other shapes")
    left = tasks - len(snapshot.finished) - bool(snapshot.epoch)
    if len(snapshot.accuracy) != len(snapshot.finished) + 1 or not snapshot.seconds >= 0 or not left >= 0:
        raise ValueError("it says two things at once")
