"""One unit of work: a group of runs of one request, trained in lockstep."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ogd.lab import catalogue
from ogd.lab.benchmarks import Benchmark
from ogd.lab.data import Dataset
from ogd.lab.experiments.plan import Unit
from ogd.lab.models import Stack, build
from ogd.lab.progress import Reporter
from ogd.lab.records import Curve, Request, RunRecord
from ogd.lab.records.record import environment
from ogd.lab.training import Checkpoint, History, Result, Schedule, first_task, train


def train_unit(
    unit: Unit, dataset: Dataset, report: Reporter, out: Path | None = None, first: History | None = None
) -> Iterator[RunRecord]:
    """Train a unit's runs and yield their records, going on from its checkpoint under `out` or from its first task."""
    request = unit.request
    benchmark = benchmark_of(request, dataset)
    method = catalogue.METHODS[request.method].load()(**request.options)
    model, schedule, checkpoint = stack_of(request, benchmark, unit.group), schedule_of(request), _checkpoint(unit, out)
    result = train(benchmark, model, method, first=first, checkpoint=checkpoint, progress=report, **asdict(schedule))
    for r, number in enumerate(unit.group):
        yield RunRecord(
            request=request,
            run=number,
            accuracy=result.accuracy[r].tolist(),
            curve=_curve(result, r) if request.curve_every else None,
            seconds=round(result.seconds, 2),
            lockstep=len(unit.group),
            environment=environment(),
        )


def train_first(unit: Unit, dataset: Dataset, report: Reporter, out: Path | None = None) -> History:
    """Train the first task of a unit's runs, for every unit that shares it."""
    benchmark = benchmark_of(unit.request, dataset)
    model = stack_of(unit.request, benchmark, unit.group)
    return first_task(benchmark, model, schedule_of(unit.request), report, _checkpoint(unit, out))


def stack_of(request: Request, benchmark: Benchmark, runs: Sequence[int]) -> Stack:
    """Make the stack that a request names, for some of its runs."""
    said = {name: getattr(request, name) for name in ("hidden", "seed", "init", "biases")}
    return build(request.model, benchmark, runs=runs, **said)


def _checkpoint(unit: Unit, out: Path | None) -> Checkpoint | None:
    return Checkpoint(unit.checkpoint(out), unit.identity) if out is not None else None


def schedule_of(request: Request) -> Schedule:
    """Return the part of a request that is how to train."""
    return Schedule(**{name.name: getattr(request, name.name) for name in fields(Schedule)})


def _curve(result: Result, r: int) -> Curve:
    return Curve(result.curve_steps, [[None if np.isnan(a) else a for a in row] for row in result.curve[r].tolist()])


def benchmark_of(request: Request, dataset: Dataset) -> Benchmark:
    """Make the benchmark that a request names."""
    return _benchmark(request.benchmark, dataset, tuple(request.benchmark_arguments.items()))


@lru_cache(maxsize=1)  # neighbouring requests mostly share it, and one takes up to 1 GB
def _benchmark(name: str, dataset: Dataset, said: tuple[tuple[str, Any], ...]) -> Benchmark:
    make = catalogue.BENCHMARKS[name].load()
    takes = inspect.signature(make).parameters
    made: Benchmark = make(dataset=dataset, **{key: value for key, value in said if key in takes})
    return made
