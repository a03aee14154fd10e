"""Experiments of the paper → their records, as far as there are methods for them."""

from collections.abc import Sequence
from pathlib import Path

from ogd import catalogue
from ogd.data import Dataset
from ogd.experiments import runner
from ogd.experiments.paper import EXPERIMENTS, Experiment, Row, quick
from ogd.records import Request, RunRecord, resolve
from ogd.records.request import at_least

Answers = list[tuple[Row, list[list[RunRecord]]]]  # for each row, one list of runs a setting


def choose(names: Sequence[str], *, quickly: bool, runs: int | None) -> tuple[list[Experiment], list[str]]:
    """Return the experiments of these names and the names of those that no method here can run; `all` is every one."""
    for name in names:
        catalogue.check_name("names", name, [*EXPERIMENTS, "all"])
    at_least(1, optional=("runs",), runs=runs)
    wanted = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))
    chosen, missing = [], []
    for name in wanted:
        experiment = quick(EXPERIMENTS[name]) if quickly else EXPERIMENTS[name]
        rows = tuple(row for row in experiment.rows if row.method in catalogue.METHODS)
        if rows:
            chosen.append(experiment.with_rows(rows, runs))
        else:
            missing.append(name)
    if not chosen:
        raise ValueError(f"names: this version has no method for {', '.join(missing)}")
    return chosen, missing


def perform(
    experiments: Sequence[Experiment], dataset: Dataset, out: Path, *, seed: int = 0, jobs: int | None = None
) -> list[tuple[Experiment, Answers]]:
    """Run what is not recorded yet and return each experiment with its records."""
    asked = [[_requests(row, dataset, seed) for row in experiment.rows] for experiment in experiments]
    wanted = []
    for experiment, rows in zip(experiments, asked, strict=True):
        requests = [request for row in rows for request in row]
        runner.check(requests, experiment.runs, dataset, jobs)
        wanted += [(request, experiment.runs) for request in requests]
    found = iter(runner.run(wanted, dataset, out, jobs))
    return [
        (
            experiment,
            [(row, [next(found) for _ in requests]) for row, requests in zip(experiment.rows, rows, strict=True)],
        )
        for experiment, rows in zip(experiments, asked, strict=True)
    ]


def _requests(row: Row, dataset: Dataset, seed: int) -> list[Request]:
    return [resolve(method=row.method, dataset=dataset, seed=seed, **setting) for setting in row.settings]
