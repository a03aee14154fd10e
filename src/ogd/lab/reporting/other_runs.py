"""The runs of a folder that are of no table or figure: what `ogd run` recorded."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ogd.lab.catalogue import METHODS, Method
from ogd.lab.experiments.runs import ExperimentRuns
from ogd.lab.records import Request, RunRecord, average_accuracy, final_accuracy, find, forgetting
from ogd.lab.records.folder import places, requests_at
from ogd.lab.reporting.compare import WHOLE
from ogd.lab.reporting.index import tasks_of, unusual
from ogd.lab.reporting.tables import Array, count_dead, matrices, mean_std


@dataclass(frozen=True)
class Own:
    """All runs of one setting."""

    request: Request
    records: tuple[RunRecord, ...]

    @property
    def method(self) -> Method:
        return METHODS[self.request.method]

    @property
    def benchmark(self) -> str:
        return tasks_of(self.request)

    @property
    def settings(self) -> str:
        return unusual(self.request)

    @property
    def accuracy(self) -> Array:
        """The accuracy matrices in percent, (runs, 1 + tasks, tasks)."""
        return 100 * matrices(self.records)

    @property
    def dead(self) -> int:
        """How many of the runs are dead."""
        return count_dead(self.records)

    @property
    def average(self) -> str:
        return mean_std(average_accuracy(self.accuracy), dead=self.dead)

    @property
    def forgetting(self) -> str:
        return mean_std(forgetting(self.accuracy), dead=self.dead)

    @property
    def first(self) -> str:
        """The accuracy on the first task after the last."""
        return mean_std(final_accuracy(self.accuracy)[:, 0], dead=self.dead)


@dataclass(frozen=True)
class Others:
    """What a folder holds besides tables and figures: settings with their runs, and folders that cannot be read."""

    settings: tuple[Own, ...] = ()
    unreadable: tuple[str, ...] = ()


def others(folder: Path, found: Iterable[ExperimentRuns]) -> Others:
    """Return what no table or figure shows of which at least half was run.

    The settings are in the order of their benchmarks, and of one benchmark the best average comes first.
    """
    shown = {record.request.key for one in found if one.share >= WHOLE for record in one.records()}
    settings: dict[str, Own] = {}
    unreadable = []
    for place in places(folder):
        try:
            for request in requests_at(place):
                if request.key not in shown:
                    settings[request.key] = Own(request, tuple(find(folder, request).values()))
        except ValueError:
            unreadable.append(place.name)
    best = sorted(settings.values(), key=lambda own: (own.benchmark, -float(np.mean(average_accuracy(own.accuracy)))))
    return Others(tuple(best), tuple(unreadable))
