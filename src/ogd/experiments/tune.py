"""Choosing EWC's λ: the grid in lockstep, one λ a run with all else equal, judged on a validation split."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ogd import files
from ogd.benchmarks import Benchmark
from ogd.data import Dataset
from ogd.experiments.unit import benchmark_of, schedule_of
from ogd.methods import EWC
from ogd.models import StackedMLP
from ogd.progress import Display
from ogd.records import Request, tuning
from ogd.records.record import versions
from ogd.records.request import digest
from ogd.records.tuning import Tuning
from ogd.training import Checkpoint, Snapshot, first_task, train


def tune_ewc(request: Request, grid: Sequence[float], runs: int, held_out: Dataset, out: Path) -> Tuning:
    """Return the validation accuracy, averaged over the tasks after the last, of every λ and at least so many runs.

    `held_out` is what `ogd.data.validation` returns: a sixth of the training examples to judge by, no test example. The
    record is written after every run. Runs that it has are not trained again, and what was killed goes on from its
    checkpoints.
    """
    grid = [float(value) for value in grid]
    files.sweep(out)
    scores = _recorded(request, grid, out)
    while len(scores) < runs:
        run = len(scores)
        kept = _checkpoints(request, grid, run, out)
        with Display(f"tune ewc on {request.benchmark}, run {run + 1}/{runs}") as display:
            row = _score(benchmark_of(request, held_out), request, grid, run, kept, display)
        meanwhile = _recorded(request, grid, out)  # by another process in this folder
        scores = meanwhile if len(meanwhile) > run else [*scores, row]
        tuning.write(Tuning(request, grid, scores), out)
    for run in range(len(scores)):
        for checkpoint in _checkpoints(request, grid, run, out):
            checkpoint.path.unlink(missing_ok=True)
    return Tuning(request, grid, scores)


def _recorded(request: Request, grid: list[float], out: Path) -> list[list[float | None]]:
    path = tuning.path_of(request, out)
    found = tuning.read(path) if path.exists() else None
    return found.scores if found is not None and (found.request, found.grid) == (request, grid) else []


def _checkpoints(request: Request, grid: list[float], run: int, out: Path) -> list[Checkpoint]:
    asked = json.dumps([asdict(request), grid, run, versions()], sort_keys=True)
    name = f"checkpoint-tune-{digest(asked)}"
    return [Checkpoint(out / f"{name}-{part}.safetensors", asked) for part in ("first", "rest")]


def _score(
    benchmark: Benchmark,
    request: Request,
    grid: list[float],
    run: int,
    kept: Sequence[Checkpoint],
    display: Display,
) -> list[float | None]:
    """Train one run with every λ; None for a λ with which its weights diverge."""
    sizes, schedule = (benchmark.inputs, *request.hidden, benchmark.outputs), schedule_of(request)
    others = {name: value for name, value in request.options.items() if name != "ewc_lambda"}
    alone = StackedMLP(sizes, runs=[run], seed=request.seed)
    first = _repeated(first_task(benchmark, alone, schedule, display, kept[0]), len(grid))
    model = StackedMLP(sizes, runs=[run] * len(grid), seed=request.seed)
    method = EWC(ewc_lambda=grid, **others)  # type: ignore[arg-type]
    settings = {**asdict(schedule), "first": first, "checkpoint": kept[1]}
    result = train(benchmark, model, method, check=False, progress=display, **settings)
    finite = [all(bool(w[i].isfinite().all()) for w in model.parameters()) for i in range(len(grid))]
    return [a if ok else None for a, ok in zip(result.average_accuracy.tolist(), finite, strict=True)]


def _repeated(first: Snapshot, times: int) -> Snapshot:
    """The first task is the same for every λ: train it once."""
    return Snapshot(finished=[[w.repeat(times, *[1] * (w.ndim - 1)) for w in first.finished[0]]], seconds=first.seconds)
