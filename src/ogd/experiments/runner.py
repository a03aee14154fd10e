"""Requests → records: trains what is not recorded yet, many runs at once, in several processes."""

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ogd import records
from ogd.data import Dataset
from ogd.records import Request, RunRecord
from ogd.records.request import at_least

MOST = 100_000
LOCKSTEP = 10  # runs trained at once; a larger stack falls out of the cache
WEIGHTS = {"sgd": 1.0, "mtl": 1.2, "ewc": 1.5, "agem": 2.5, "ogd": 5.0}  # a step's time, roughly: for the time left


@dataclass(frozen=True)
class Unit:
    """Runs of one request that train in lockstep."""

    request: Request
    group: tuple[int, ...]
    steps: int

    @property
    def cost(self) -> float:
        return self.steps * len(self.group) * WEIGHTS.get(self.request.method, 1.0)

    @property
    def name(self) -> str:
        return f"{self.request.benchmark} {self.request.method}"


class Failed(RuntimeError):
    """Some units could not be carried out; the message has a line for each."""


def run(
    wanted: Sequence[tuple[Request, int]], dataset: Dataset, out: Path, jobs: int | None = None
) -> list[list[RunRecord]]:
    """Return the records of runs 0 … runs−1 of every (request, runs), training only those that `out` does not hold.

    Every record is written as soon as it is there. A unit that fails does not keep the others from going on.
    """
    runs = {request.key: (request, 0) for request, _ in wanted}
    for request, n in wanted:
        runs[request.key] = (request, max(n, runs[request.key][1]))
    units = [unit for request, n in runs.values() for unit in _missing(request, n, dataset, out)]
    if units:
        check_writable({records.folder_of(unit.request, out) for unit in units})
        from ogd.experiments import processes  # imports torch, which showing what is recorded does not need

        failures = []
        for unit, answer in processes.perform(units, dataset, jobs):
            if isinstance(answer, str):
                failures.append(f"{unit.name}: {answer}")
                continue
            for record in answer:
                records.write(record, out)
        if failures:
            raise Failed("\n".join(failures))
    found = [records.find(out, request) for request, _ in wanted]
    return [[done[r] for r in range(n)] for done, (_, n) in zip(found, wanted, strict=True)]


def check(requests: Sequence[Request], runs: int, dataset: Dataset, jobs: int | None = None) -> None:
    """Raise a ValueError for whatever could not be carried out, before any work is done."""
    at_least(1, optional=("jobs",), runs=runs, jobs=jobs)
    if runs > MOST:
        raise ValueError(f"runs: must be at most {MOST:,}, not {runs:,}")
    for request in requests:
        smallest = min(_sizes(request, dataset))
        if request.batch_size > smallest:
            raise ValueError(
                f"batch_size: {request.batch_size} is above the {smallest:,} training examples of the smallest task"
            )


def check_writable(folders: Iterable[Path]) -> None:
    """Make the folders, or raise a ValueError if one cannot be written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ValueError(f"out: cannot write to {folder}: {error.strerror or error}") from error


def _missing(request: Request, runs: int, dataset: Dataset, out: Path) -> Iterator[Unit]:
    done = records.find(out, request)
    missing = [r for r in range(runs) if r not in done]
    steps = request.epochs * sum(math.ceil(n / request.batch_size) for n in _sizes(request, dataset))
    for start in range(0, len(missing), LOCKSTEP):
        yield Unit(request, tuple(missing[start : start + LOCKSTEP]), steps)


def _sizes(request: Request, dataset: Dataset) -> list[int]:
    """How many training examples each task has."""
    if request.partition is None:
        return [len(dataset.train_labels)] * request.tasks
    counts = np.bincount(dataset.train_labels)
    return [int(counts[list(part)].sum()) for part in request.partition]
