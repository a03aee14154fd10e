"""What there is of an experiment: the runs that answer each of its settings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ogd.lab.data import Dataset
from ogd.lab.experiments.experiment import Experiment, Row
from ogd.lab.experiments.resolve import resolve
from ogd.lab.records import Request, RunRecord


@dataclass(frozen=True)
class Answer:
    """One row: what it asks, a request per setting, and the runs of each that were found."""

    row: Row
    requests: tuple[Request, ...]
    runs: tuple[tuple[RunRecord, ...], ...]


@dataclass(frozen=True)
class Found:
    """An experiment in one profile, and what a folder holds of it; `parts` as the experiment has them."""

    experiment: Experiment
    answers: tuple[Answer, ...]
    parts: tuple[tuple["Found", ...], ...] = ()

    @property
    def trained(self) -> Iterator[Answer]:
        """All answers, those of its parts too."""
        yield from self.answers
        for versions in self.parts:
            for version in versions:
                yield from version.trained

    @property
    def share(self) -> float:
        """How many of its settings have a run, as a fraction."""
        there = [bool(runs) for answer in self.trained for runs in answer.runs]
        return sum(there) / len(there)

    def records(self) -> Iterator[RunRecord]:
        for answer in self.trained:
            for runs in answer.runs:
                yield from runs


def answered(
    experiment: Experiment, dataset: Dataset, runs_of: Callable[[Request, int], Sequence[RunRecord]], seed: int = 0
) -> Found:
    """Return an experiment with what `runs_of(request, runs)` has for each of its settings."""
    answers = []
    for row in experiment.rows:
        requests = requests_of(row, dataset, seed)
        answers.append(Answer(row, requests, tuple(tuple(runs_of(one, experiment.runs)) for one in requests)))
    parts = tuple(
        tuple(answered(version, dataset, runs_of, seed) for version in versions) for versions in experiment.parts
    )
    return Found(experiment, tuple(answers), parts)


def requests_of(row: Row, dataset: Dataset, seed: int = 0) -> tuple[Request, ...]:
    """Return what a row asks, a request per setting."""
    return tuple(resolve(method=row.method, dataset=dataset, seed=seed, **setting) for setting in row.settings)
