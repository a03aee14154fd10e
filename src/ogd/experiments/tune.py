"""Choosing EWC's λ: the grid in lockstep, one λ a run with all else equal, judged on a validation split."""

from collections.abc import Sequence
from dataclasses import asdict

from ogd import data
from ogd.data import Dataset
from ogd.experiments.unit import benchmark_of, schedule_of
from ogd.methods import EWC
from ogd.models import StackedMLP
from ogd.records import Request
from ogd.records.tuning import Tuning
from ogd.training import Snapshot, first_task, train
from ogd.training.progress import Display


def tune_ewc(request: Request, grid: Sequence[float], runs: int, dataset: Dataset) -> Tuning:
    """Return the validation accuracy, averaged over the tasks after the last, of every λ and run.

    The validation examples are a sixth of the training examples; no test example is looked at.
    """
    benchmark = benchmark_of(request, data.validation(dataset))
    sizes = (benchmark.inputs, *request.hidden, benchmark.outputs)
    schedule = schedule_of(request)
    others = {name: value for name, value in request.options.items() if name != "ewc_lambda"}
    scores = []
    for run in range(runs):
        with Display(f"tune ewc on {request.benchmark}, run {run + 1}/{runs}") as display:
            alone = StackedMLP(sizes, runs=[run], seed=request.seed)
            first = _repeated(first_task(benchmark, alone, schedule, display), len(grid))
            model = StackedMLP(sizes, runs=[run] * len(grid), seed=request.seed)
            method = EWC(ewc_lambda=list(grid), **others)  # type: ignore[arg-type]
            result = train(benchmark, model, method, first=first, check=False, progress=display, **asdict(schedule))
        finite = [all(bool(w[i].isfinite().all()) for w in model.parameters()) for i in range(len(grid))]
        scores.append([a if ok else None for a, ok in zip(result.average_accuracy.tolist(), finite, strict=True)])
    return Tuning(request, list(grid), scores)


def _repeated(first: Snapshot, times: int) -> Snapshot:
    """The first task is the same for every λ: train it once."""
    return Snapshot(finished=[[w.repeat(times, *[1] * (w.ndim - 1)) for w in first.finished[0]]], seconds=first.seconds)
