"""One unit of work: a group of runs of one request, trained in lockstep."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ogd import catalogue
from ogd.benchmarks import Benchmark
from ogd.data import Dataset
from ogd.models import StackedMLP
from ogd.records import Curve, Request, RunRecord
from ogd.records.record import environment
from ogd.training import FirstTask, Result, Schedule, first_task, train
from ogd.training.progress import Reporter

SHARED = 8  # first tasks kept for whoever asks next; a few MB each

_first_tasks: dict[tuple[object, ...], FirstTask] = {}


def perform(request: Request, group: Sequence[int], dataset: Dataset, report: Reporter) -> Iterator[RunRecord]:
    """Train these runs and yield their records. The first task is trained once for all methods that share it."""
    benchmark = benchmark_of(request, dataset)
    sizes = (benchmark.inputs, *request.hidden, benchmark.outputs)
    schedule = schedule_of(request)
    method = catalogue.METHODS[request.method].load()(**request.options)
    with one_thread():
        key = _first_key(request, group)
        if key in _first_tasks:
            report.advance(_first_tasks[key].steps, "first task shared")
        else:
            model = StackedMLP(sizes, runs=group, seed=request.seed)
            _first_tasks[key] = first_task(benchmark, model, schedule, report)
            for old in list(_first_tasks)[:-SHARED]:
                del _first_tasks[old]
        first = _first_tasks[key]
        model = StackedMLP(sizes, runs=group, seed=request.seed)
        result = train(benchmark, model, method, first=first, progress=report, **asdict(schedule))
    for r, number in enumerate(group):
        yield RunRecord(
            request=request,
            run=number,
            accuracy=result.accuracy[r].tolist(),
            curve=_curve(result, r) if request.curve_every else None,
            seconds=round(first.seconds + result.seconds, 2),
            lockstep=len(group),
            environment=environment(),
        )


def _first_key(request: Request, group: Sequence[int]) -> tuple[object, ...]:
    """All that the first task depends on: neither the method nor the tasks that follow."""
    first = request.angles[0] if request.angles else request.partition[0] if request.partition else None
    what = (request.benchmark, first, request.heads, request.hidden, request.data_sha256)
    return (*what, schedule_of(request), tuple(group))


def schedule_of(request: Request) -> Schedule:
    """Return the part of a request that is how to train."""
    return Schedule(**{name.name: getattr(request, name.name) for name in fields(Schedule)})


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that a record does not depend on how many cores its machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _curve(result: Result, r: int) -> Curve:
    return Curve(result.curve_steps, [[None if np.isnan(a) else a for a in row] for row in result.curve[r].tolist()])


def benchmark_of(request: Request, dataset: Dataset) -> Benchmark:
    """Make the benchmark that a request names."""
    said = {name: getattr(request, name) for name in ("tasks", "angles", "partition", "heads", "seed")}
    return _benchmark(request.benchmark, dataset, tuple(said.items()))


@lru_cache(maxsize=1)  # neighbouring requests mostly share it, and one takes up to 1 GB
def _benchmark(name: str, dataset: Dataset, said: tuple[tuple[str, Any], ...]) -> Benchmark:
    make = catalogue.BENCHMARKS[name].load()
    takes = inspect.signature(make).parameters
    made: Benchmark = make(dataset=dataset, **{key: value for key, value in said if key in takes})
    return made
