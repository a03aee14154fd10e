"""Experiments of the paper → their records, as far as there are methods for them."""

from collections.abc import Iterator, Sequence
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
    at_least(1, runs=runs)
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
    experiments: Sequence[Experiment], dataset: Dataset, out: Path, seed: int = 0
) -> Iterator[tuple[Experiment, Answers]]:
    """Run what is not recorded yet and yield each experiment with its records as soon as it is complete."""
    asked = [[_requests(row, dataset, seed) for row in experiment.rows] for experiment in experiments]
    for experiment, rows in zip(experiments, asked, strict=True):
        runner.check([request for requests in rows for request in requests], experiment.runs, dataset, out)
    total, number = sum(len(requests) for rows in asked for requests in rows), 0
    for experiment, rows in zip(experiments, asked, strict=True):
        answers: Answers = []
        for row, requests in zip(experiment.rows, rows, strict=True):
            found = []
            for request in requests:
                number += 1
                label = f"[{number}/{total}] {experiment.name} {row.label}"
                found.append(runner.run(request, experiment.runs, dataset, out, label))
            answers.append((row, found))
        yield experiment, answers


def _requests(row: Row, dataset: Dataset, seed: int) -> list[Request]:
    return [resolve(method=row.method, dataset=dataset, seed=seed, **setting) for setting in row.settings]
