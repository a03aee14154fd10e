"""Experiments → their records."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ogd.checks import check_name, check_whole
from ogd.data import Dataset
from ogd.experiments import EXPERIMENTS, quick, runner
from ogd.experiments.backends import Backend
from ogd.experiments.experiment import Experiment
from ogd.experiments.found import Answer, Found, requests_of


def choose(names: Sequence[str], *, quickly: bool, runs: int | None) -> list[Experiment]:
    """Return the experiments of these names, `all` being every one, with so many runs unless `runs` is None."""
    for name in names:
        check_name("names", name, [*EXPERIMENTS, "all"])
    check_whole(1, optional=("runs",), runs=runs)
    wanted = EXPERIMENTS if "all" in names else dict.fromkeys(names)
    chosen = [quick(EXPERIMENTS[name]) if quickly else EXPERIMENTS[name] for name in wanted]
    return [replace(experiment, runs=runs or experiment.runs) for experiment in chosen]


def reproduce(
    experiments: Sequence[Experiment], dataset: Dataset, out: Path, *, seed: int = 0, backend: Backend | None = None
) -> tuple[list[Found], list[str]]:
    """Run what is not recorded yet; return what there is of each experiment, and a line for each unit that failed."""
    asked = [[requests_of(row, dataset, seed) for row in experiment.rows] for experiment in experiments]
    wanted = []
    for experiment, rows in zip(experiments, asked, strict=True):
        requests = [request for row in rows for request in row]
        runner.check(requests, experiment.runs, dataset)
        wanted += [(request, experiment.runs) for request in requests]
    outcome = runner.run(wanted, dataset, out, backend)
    records = iter(outcome.found)
    found = []
    for experiment, rows in zip(experiments, asked, strict=True):
        pairs = zip(experiment.rows, rows, strict=True)
        answers = [Answer(row, requests, tuple(tuple(next(records)) for _ in requests)) for row, requests in pairs]
        found.append(Found(experiment, tuple(answers)))
    return found, outcome.failures
