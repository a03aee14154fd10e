"""Choosing EWC's λ: the grid in lockstep, one λ a run with all else equal, judged on a validation split."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ogd import data
from ogd.data import Dataset
from ogd.experiments.unit import benchmark_of, schedule_of
from ogd.methods import EWC
from ogd.models import StackedMLP
from ogd.records import Request, files, tuning
from ogd.records.record import versions
from ogd.records.request import digest
from ogd.records.tuning import Tuning
from ogd.training import Checkpoint, Snapshot, first_task, train
from ogd.training.progress import Display


def tune_ewc(request: Request, grid: Sequence[float], runs: int, dataset: Dataset, out: Path) -> tuple[Tuning, Path]:
    """Return the validation accuracy, averaged over the tasks after the last, of every λ and run, and its record.

    The validation examples are a sixth of the training examples; no test example is looked at. What was killed goes on
    from its checkpoints in `out`.
    """
    benchmark = benchmark_of(request, data.validation(dataset))
    sizes = (benchmark.inputs, *request.hidden, benchmark.outputs)
    schedule = schedule_of(request)
    others = {name: value for name, value in request.options.items() if name != "ewc_lambda"}
    asked = json.dumps([asdict(request), list(grid), versions()], sort_keys=True)
    name = f"checkpoint-tune-{digest(asked)}"
    files.sweep(out)
    scores = []
    for run in range(runs):
        kept = [Checkpoint(out / f"{name}-{part}-{run}.safetensors", asked) for part in ("first", "rest")]
        with Display(f"tune ewc on {request.benchmark}, run {run + 1}/{runs}") as display:
            alone = StackedMLP(sizes, runs=[run], seed=request.seed)
            first = _repeated(first_task(benchmark, alone, schedule, display, kept[0]), len(grid))
            model = StackedMLP(sizes, runs=[run] * len(grid), seed=request.seed)
            method = EWC(ewc_lambda=list(grid), **others)  # type: ignore[arg-type]
            result = train(
                benchmark,
                model,
                method,
                first=first,
                checkpoint=kept[1],
                check=False,
                progress=display,
                **asdict(schedule),
            )
        finite = [all(bool(w[i].isfinite().all()) for w in model.parameters()) for i in range(len(grid))]
        scores.append([a if ok else None for a, ok in zip(result.average_accuracy.tolist(), finite, strict=True)])
    found = Tuning(request, list(grid), scores)
    path = tuning.write(found, out)
    for done in out.glob(f"{name}-*.safetensors"):
        done.unlink(missing_ok=True)
    return found, path


def _repeated(first: Snapshot, times: int) -> Snapshot:
    """The first task is the same for every λ: train it once."""
    return Snapshot(finished=[[w.repeat(times, *[1] * (w.ndim - 1)) for w in first.finished[0]]], seconds=first.seconds)
