"""The recorded runs of an experiment, row by row and setting by setting. Never imports torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ogd.lab.data import Dataset, outline
from ogd.lab.experiments.experiment import Experiment, Row
from ogd.lab.experiments.resolve import resolve
from ogd.lab.records import Request, RunRecord


@dataclass(frozen=True)
class RowRuns:
    """A row of an experiment: a request per setting, and the runs of each that are recorded."""

    row: Row
    requests: tuple[Request, ...]
    runs: tuple[tuple[RunRecord, ...], ...]


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment and its recorded runs, row by row; `parts` corresponds to the parts of the experiment."""

    experiment: Experiment
    answers: tuple[RowRuns, ...]
    parts: tuple[tuple["ExperimentRuns", ...], ...] = ()

    @property
    def trained(self) -> Iterator[RowRuns]:
        """The runs of all its rows, and of those of its parts."""
        yield from self.answers
        for versions in self.parts:
            for version in versions:
                yield from version.trained

    @property
    def share(self) -> float:
        """The fraction of its settings that have a run; those of yardsticks do not count."""
        there = [bool(runs) for answer in self.trained if not answer.row.yardstick for runs in answer.runs]
        return sum(there) / len(there)

    def records(self) -> Iterator[RunRecord]:
        for answer in self.trained:
            for runs in answer.runs:
                yield from runs


def find_runs(
    experiment: Experiment, dataset: Dataset, runs_of: Callable[[Request, int], Sequence[RunRecord]], seed: int = 0
) -> ExperimentRuns:
    """Return an experiment with the runs that `runs_of(request, runs)` returns for each of its settings."""
    answers = []
    for row in experiment.rows:
        requests = requests_of(row, dataset, seed)
        answers.append(RowRuns(row, requests, tuple(tuple(runs_of(one, experiment.runs)) for one in requests)))
    parts = tuple(
        tuple(find_runs(version, dataset, runs_of, seed) for version in versions) for versions in experiment.parts
    )
    return ExperimentRuns(experiment, tuple(answers), parts)


def requests_of(row: Row, dataset: Dataset, seed: int = 0) -> tuple[Request, ...]:
    """Return the requests of a row, one per setting; a setting that names its `data` does not take `dataset`."""
    found = []
    for setting in row.settings:
        own = {name: value for name, value in setting.items() if name != "data"}
        chosen = outline(setting["data"]) if "data" in setting else dataset
        found.append(resolve(method=row.method, dataset=chosen, seed=seed, **own))
    return tuple(found)
