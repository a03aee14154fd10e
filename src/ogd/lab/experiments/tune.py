"""Choosing an option of a method: the grid in lockstep, one value per run, judged on a validation split."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ogd import files
from ogd.lab import catalogue
from ogd.lab.benchmarks.task import Benchmark, make_benchmark
from ogd.lab.data import Dataset
from ogd.lab.models.build import stack_of
from ogd.lab.progress import Display
from ogd.lab.records import Request, tuning
from ogd.lab.records.record import versions
from ogd.lab.records.request import digest
from ogd.lab.records.tuning import Tuning
from ogd.lab.training import Checkpoint, History, first_task, train


def tune(request: Request, option: str, grid: Sequence[float], runs: int, held_out: Dataset, out: Path) -> Tuning:
    """Return the validation accuracy, averaged over the tasks after the last, of every value and at least so many runs.

    `held_out` is what `ogd.lab.data.validation` returns: a sixth of the training examples to judge by, no test example.
    The record is written after every run. Runs that it has are not trained again, and what was interrupted resumes from
    its checkpoints.
    """
    empty = Tuning(request, [float(value) for value in grid], [], option)
    files.sweep(out)
    scores = _recorded(empty, out)
    while len(scores) < runs:
        run = len(scores)
        kept = _checkpoints(empty, run, out)
        with Display(f"tune {request.method} on {request.benchmark}, run {run + 1}/{runs}") as display:
            row = _score(make_benchmark(request, held_out), empty, run, kept, display)
        meanwhile = _recorded(empty, out)  # by another process in this folder
        scores = meanwhile if len(meanwhile) > run else [*scores, row]
        tuning.write(Tuning(request, empty.grid, scores, option), out)
    for run in range(len(scores)):
        for checkpoint in _checkpoints(empty, run, out):
            checkpoint.path.unlink(missing_ok=True)
    return Tuning(request, empty.grid, scores, option)


def _recorded(asked: Tuning, out: Path) -> list[list[float | None]]:
    path = tuning.path_of(asked, out)
    found = tuning.read(path) if path.exists() else None
    return found.scores if found is not None and found.asks_like(asked) else []


def _checkpoints(asked: Tuning, run: int, out: Path) -> list[Checkpoint]:
    """The checkpoints of one run: of its first task, and of the rest."""
    identity = json.dumps([asdict(asked.request), asked.option, asked.grid, run, versions()], sort_keys=True)
    name = f"checkpoint-tune-{digest(identity)}"
    return [Checkpoint(out / f"{name}-{part}.safetensors", f"{identity} {part}") for part in ("first", "rest")]


def _score(
    benchmark: Benchmark, asked: Tuning, run: int, kept: Sequence[Checkpoint], display: Display
) -> list[float | None]:
    """Train one run with every value; None for a value with which its weights diverge or the run ends dead."""
    request, grid, schedule = asked.request, asked.grid, asked.request.schedule
    alone = stack_of(request, benchmark, [run])
    first = _repeated(first_task(benchmark, alone, schedule, display, kept[0]), len(grid))
    model = stack_of(request, benchmark, [run] * len(grid))
    method = catalogue.METHODS[request.method].load()(**{**request.options, asked.option: grid})
    settings = {**asdict(schedule), "first": first, "checkpoint": kept[1]}
    result = train(benchmark, model, method, check=False, progress=display, **settings)
    finite = [all(bool(w[i].isfinite().all()) for w in model.params.values()) for i in range(len(grid))]
    scored = zip(result.average_accuracy.tolist(), finite, result.dead, strict=True)
    return [a if ok and not dead else None for a, ok, dead in scored]


def _repeated(first: History, times: int) -> History:
    """The first task is the same for every value: train it once."""
    repeated = {name: w.repeat(times, *[1] * (w.ndim - 1)) for name, w in first.finished[0].items()}
    return History(finished=[repeated], seconds=first.seconds)
