"""Experiments → their records."""

from collections.abc import Sequence
from pathlib import Path

from ogd.checks import check_name, check_whole
from ogd.lab.data import Dataset
from ogd.lab.experiments import quick, runner
from ogd.lab.experiments.answers import Found, answered, requests_of
from ogd.lab.experiments.backends import Backend
from ogd.lab.experiments.experiment import Experiment, with_runs
from ogd.lab.experiments.registry import ALL, EXPERIMENTS


def choose(names: Sequence[str], *, quickly: bool, runs: int | None) -> list[Experiment]:
    """Return the experiments of these names, with so many runs unless `runs` is None.

    `all` is every one but those that must be named: leaderboards, and what runs whole tables again.
    """
    for name in names:
        check_name("names", name, [*EXPERIMENTS, ALL])
    check_whole(1, optional=("runs",), runs=runs)
    every = [name for name, experiment in EXPERIMENTS.items() if not (experiment.parts or experiment.named)]
    wanted = dict.fromkeys([*names, *every] if ALL in names else names)
    wanted.pop(ALL, None)
    chosen = [quick(EXPERIMENTS[name]) if quickly else EXPERIMENTS[name] for name in wanted]
    return [with_runs(experiment, runs) for experiment in chosen] if runs else chosen


def reproduce(
    experiments: Sequence[Experiment], dataset: Dataset, out: Path, *, seed: int = 0, backend: Backend | None = None
) -> tuple[list[Found], list[str]]:
    """Run what is not recorded yet; return what there is of each experiment, and a line for each unit that failed."""
    wanted = []
    for trained in (trained for experiment in experiments for trained in experiment.trained):
        requests = [request for row in trained.rows for request in requests_of(row, dataset, seed)]
        runner.check(requests, trained.runs, dataset)
        wanted += [(request, trained.runs) for request in requests]
    outcome = runner.run(wanted, dataset, out, backend)
    done = {(request.key, runs): found for (request, runs), found in zip(wanted, outcome.found, strict=True)}
    answers = [answered(one, dataset, lambda request, runs: done[request.key, runs], seed) for one in experiments]
    return answers, outcome.failures
