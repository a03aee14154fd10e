"""One unit of work: a group of runs of one request, trained in lockstep."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

from ogd import benchmarks, catalogue
from ogd.benchmarks import Benchmark
from ogd.data import Dataset
from ogd.models import StackedMLP
from ogd.records import Curve, Request, RunRecord
from ogd.records.partition import Partition
from ogd.records.record import environment
from ogd.training import Result, train
from ogd.training.progress import Display


def perform(request: Request, group: Sequence[int], dataset: Dataset, label: str) -> Iterator[RunRecord]:
    benchmark = _benchmark(
        request.benchmark,
        dataset,
        request.tasks,
        request.angles,
        request.partition,
        request.heads,
        request.seed,
    )
    model = StackedMLP((benchmark.inputs, *request.hidden, benchmark.outputs), runs=group, seed=request.seed)
    method = catalogue.METHODS[request.method].load()()
    with one_thread(), Display(label) as display:
        result = train(
            benchmark,
            model,
            method,
            epochs=request.epochs,
            batch_size=request.batch_size,
            lr=request.lr,
            seed=request.seed,
            curve_every=request.curve_every,
            progress=display,
        )
    for r, number in enumerate(group):
        yield RunRecord(
            request=request,
            run=number,
            accuracy=result.accuracy[r].tolist(),
            curve=_curve(result, r) if request.curve_every else None,
            seconds=round(result.seconds, 2),
            lockstep=len(group),
            environment=environment(),
        )


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


@lru_cache(maxsize=1)  # neighbouring requests mostly share it, and one takes up to 1 GB
def _benchmark(
    name: str,
    dataset: Dataset,
    tasks: int,
    angles: tuple[float, ...] | None,
    partition: Partition | None,
    heads: str | None,
    seed: int,
) -> Benchmark:
    if name == "permuted":
        return benchmarks.permuted(tasks, seed=seed, dataset=dataset)
    if name == "rotated":
        return benchmarks.rotated(angles=angles, dataset=dataset)
    return benchmarks.split(partition=partition, heads=heads or "multi", dataset=dataset)
