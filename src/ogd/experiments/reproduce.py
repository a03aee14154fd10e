"""Experiments → their records."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ogd import catalogue
from ogd.data import Dataset
from ogd.experiments import EXPERIMENTS, quick, runner
from ogd.experiments.backends import Crew
from ogd.experiments.experiment import Experiment, Row
from ogd.records import Request, RunRecord, resolve
from ogd.records.request import at_least

Answers = list[tuple[Row, list[list[RunRecord]]]]  # for each row, one list of runs a setting


def choose(names: Sequence[str], *, quickly: bool, runs: int | None) -> list[Experiment]:
    """Return the experiments of these names, `all` being every one, with so many runs unless `runs` is None."""
    for name in names:
        catalogue.check_name("names", name, [*EXPERIMENTS, "all"])
    at_least(1, optional=("runs",), runs=runs)
    wanted = EXPERIMENTS if "all" in names else dict.fromkeys(names)
    chosen = [quick(EXPERIMENTS[name]) if quickly else EXPERIMENTS[name] for name in wanted]
    return [replace(experiment, runs=runs or experiment.runs) for experiment in chosen]


def perform(
    experiments: Sequence[Experiment], dataset: Dataset, out: Path, *, seed: int = 0, crew: Crew | None = None
) -> tuple[list[tuple[Experiment, Answers]], list[str]]:
    """Run what is not recorded yet; return each experiment with its records, and a line for each unit that failed."""
    asked = [[_requests(row, dataset, seed) for row in experiment.rows] for experiment in experiments]
    wanted = []
    for experiment, rows in zip(experiments, asked, strict=True):
        requests = [request for row in rows for request in row]
        runner.check(requests, experiment.runs, dataset)
        wanted += [(request, experiment.runs) for request in requests]
    outcome = runner.run(wanted, dataset, out, crew)
    found = iter(outcome.found)
    answers = [
        (
            experiment,
            [(row, [next(found) for _ in requests]) for row, requests in zip(experiment.rows, rows, strict=True)],
        )
        for experiment, rows in zip(experiments, asked, strict=True)
    ]
    return answers, outcome.failures


def _requests(row: Row, dataset: Dataset, seed: int) -> list[Request]:
    return [resolve(method=row.method, dataset=dataset, seed=seed, **setting) for setting in row.settings]
