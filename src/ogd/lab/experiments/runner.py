"""Requests → records: trains what is not recorded yet, many runs at once, on as many cores as there are."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from ogd import files
from ogd.checks import ArgumentError, check_whole
from ogd.lab import records
from ogd.lab.data import Dataset, Outline, outline
from ogd.lab.experiments import plan
from ogd.lab.experiments.backends import Backend
from ogd.lab.experiments.experiment import Experiment
from ogd.lab.experiments.plan import Unit
from ogd.lab.experiments.runs import ExperimentRuns, find_runs, requests_of
from ogd.lab.records import Request, RunRecord

MOST = 100_000  # runs
_READING = ContextVar("reading", default=False)


@dataclass(frozen=True)
class Outcome:
    """What is there of every (request, runs), in order of the runs, and a line for each unit that failed."""

    found: list[list[RunRecord]]
    failures: list[str]


def run(wanted: Sequence[tuple[Request, int]], dataset: Dataset, out: Path, backend: Backend | None = None) -> Outcome:
    """Return the records of runs 0 … runs−1 of every (request, runs), training only those that `out` does not hold.

    Every record is written as soon as it is there, by this process and not by the worker that trained it. If a unit
    fails, the others go on. What was interrupted resumes from its last checkpoint.
    """
    most: dict[str, tuple[Request, int]] = {}
    for request, n in wanted:
        check_runs(n)
        most[request.key] = (request, max(n, most.get(request.key, (request, 0))[1]))
    files.sweep(out)
    files.sweep_temporary_folders()
    for request, _ in most.values():
        records.recover(out, request)
    firsts, units = plan.plan(list(most.values()), dataset, out)
    needed = {unit.checkpoint(out) for unit in (*firsts, *units)}
    _remove_leftovers([request for request, _ in most.values()], needed, out)
    failures = _record(firsts, units, dataset, out, backend or Backend()) if units else []
    found = [records.find(out, request) for request, _ in wanted]
    return Outcome(
        [[done[r] for r in range(n) if r in done] for done, (_, n) in zip(found, wanted, strict=True)], failures
    )


def reproduce(
    experiments: Sequence[Experiment],
    dataset: Dataset,
    out: Path,
    *,
    others: Sequence[Dataset] = (),
    seed: int = 0,
    backend: Backend | None = None,
) -> tuple[list[ExperimentRuns], list[str]]:
    """Train what is not recorded yet; return the runs of each experiment, and a line for each unit that failed.

    `others` are the data sets that settings name. Where one is missing, its runs must be recorded.
    """
    there = {one.sha256: one for one in (dataset, *others)}
    wanted = []
    for trained in (trained for experiment in experiments for trained in experiment.trained):
        requests = [request for row in trained.rows for request in requests_of(row, dataset, seed)]
        wanted += [(request, trained.runs) for request in requests]
    done: dict[tuple[str, int], Sequence[records.RunRecord]] = {}
    failures = []
    used = {request.data_sha256: request.data for request, _ in wanted}
    for sha256 in sorted(used, key=there.__contains__):  # what is missing is an error before anything is trained
        own = [(request, runs) for request, runs in wanted if request.data_sha256 == sha256]
        outcome = run(own, there[sha256] if sha256 in there else outline(used[sha256]), out, backend)
        done |= {(request.key, runs): found for (request, runs), found in zip(own, outcome.found, strict=True)}
        failures += outcome.failures
    answers = [find_runs(one, dataset, lambda request, runs: done[request.key, runs], seed) for one in experiments]
    return answers, failures


@contextmanager
def reading_only() -> Iterator[None]:
    """Inside, a run that is not recorded is an error, and nothing is trained."""
    token = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(token)


def _record(firsts: Sequence[Unit], units: Sequence[Unit], dataset: Dataset, out: Path, backend: Backend) -> list[str]:
    """Train the units and write their records; return a line for each that failed."""
    if _READING.get():
        raise ValueError(f"{out} does not hold all runs: {units[0].name} lacks {units[0].runs}")
    if isinstance(dataset, Outline):
        raise dataset.missing()
    files.check_writable({records.folder_of(unit.request, out) for unit in (*firsts, *units)})
    from ogd.lab.experiments.dispatch import dispatch  # imports torch, which showing what is recorded does not need

    first_of = {unit.first_key: unit for unit in firsts}
    waiting = Counter(unit.first_key for unit in units if unit.part == "rest")
    failures = []
    for unit, answer in dispatch(firsts, units, dataset, out, backend):
        if isinstance(answer, str):
            failures.append(f"{unit.name}: {answer}")
            continue
        records.write_all(answer, out)
        unit.checkpoint(out).unlink(missing_ok=True)
        waiting[unit.first_key] -= 1
        if waiting[unit.first_key] == 0 and unit.first_key in first_of:
            first_of[unit.first_key].checkpoint(out).unlink(missing_ok=True)
    return failures


def _remove_leftovers(requests: Sequence[Request], needed: set[Path], out: Path) -> None:
    """Remove the checkpoints of finished units that a killed process left behind."""
    left = []
    for request in requests:
        found = list(records.folder_of(request, out).glob("checkpoint-*.safetensors"))
        done = records.find(out, request).keys() if found else ()
        left += [path for path in found if set(_runs(path)) <= set(done)]
    for path in out.glob("checkpoint-first-*.safetensors"):
        key, group = path.stem.split("-")[2], _runs(path)
        left += [path for request in requests if Unit(request, group, ()).first_key == key]
    for path in set(left) - needed:
        path.unlink(missing_ok=True)


def _runs(checkpoint: Path) -> tuple[int, ...]:
    """Return the runs in the name of a checkpoint."""
    named = re.search(r"-(\d+(?:-\d+)*)\.safetensors$", checkpoint.name)
    return tuple(map(int, named[1].split("-"))) if named else ()


def check_runs(runs: int) -> None:
    """Raise a ValueError unless this many runs can be trained."""
    check_whole(1, runs=runs)
    if runs > MOST:
        raise ArgumentError("runs", f"must be at most {MOST:,}, not {runs:,}")
