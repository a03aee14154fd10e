"""What there is of an experiment: the runs that answer each of its settings."""

from collections.abc import Iterator
from dataclasses import dataclass

from ogd.data import Dataset
from ogd.experiments.experiment import Experiment, Row
from ogd.experiments.resolve import resolve
from ogd.records import Request, RunRecord


@dataclass(frozen=True)
class Answer:
    """One row: what it asks, a request a setting, and the runs of each that were found."""

    row: Row
    requests: tuple[Request, ...]
    runs: tuple[tuple[RunRecord, ...], ...]


@dataclass(frozen=True)
class Found:
    """An experiment in one profile, and what a folder holds of it."""

    experiment: Experiment
    answers: tuple[Answer, ...]

    @property
    def share(self) -> float:
        """How many of its settings have a run, as a fraction."""
        there = [bool(runs) for answer in self.answers for runs in answer.runs]
        return sum(there) / len(there)

    def records(self) -> Iterator[RunRecord]:
        for answer in self.answers:
            for runs in answer.runs:
                yield from runs


def requests_of(row: Row, dataset: Dataset, seed: int = 0) -> tuple[Request, ...]:
    """Return what a row asks, a request a setting."""
    return tuple(resolve(method=row.method, dataset=dataset, seed=seed, **setting) for setting in row.settings)
