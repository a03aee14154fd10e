"""What was found of an experiment → cells: our runs, what was published, the difference and a mark."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from ogd.benchmarks import partition as partitions
from ogd.experiments.experiment import Cell, Experiment
from ogd.experiments.found import Answer, Found
from ogd.experiments.ours import EVERY
from ogd.records import average_accuracy, final_accuracy
from ogd.reporting.judge import Mark, judge
from ogd.reporting.tables import matrices

MEANINGS = {
    "final": "on each task after the last",
    "first": "on task 1 after the last task",
    "average": "averaged over the tasks after the last",
}
SPEEDS = {1: "ogd_over_sgd", **{k: f"ogd_every_{k}_over_sgd" for k in EVERY}}  # by the steps between projections


@dataclass(frozen=True)
class Entry:
    """A cell: the runs found, in percent, of so many wanted, and what was published."""

    runs: tuple[float, ...]
    wanted: int
    published: Cell | None = None

    @property
    def mean(self) -> float:
        return fmean(self.runs) if self.runs else math.nan

    @property
    def std(self) -> float:
        """The sample standard deviation; NaN where there are not two runs."""
        return stdev(self.runs) if len(self.runs) > 1 else math.nan

    @property
    def difference(self) -> float:
        return self.mean - self.published.mean if self.published else math.nan

    @property
    def mark(self) -> Mark | None:
        return judge(self.mean, self.std, self.published) if self.published else None


@dataclass(frozen=True)
class Line:
    """A row of an experiment as cells; `aside` stands in a last column of its own."""

    label: str
    method: str
    entries: tuple[Entry, ...]
    aside: str = ""


@dataclass(frozen=True)
class Comparison:
    """An experiment as a table: ours beside the paper's."""

    found: Found
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    aside: str = ""  # heading of the last column, where there is one

    @property
    def experiment(self) -> Experiment:
        return self.found.experiment

    @property
    def title(self) -> str:
        return f"{self.experiment.where}. {self.experiment.title}"

    @property
    def published(self) -> bool:
        return any(row.published for row in self.experiment.rows)

    @property
    def runs(self) -> str:
        """How many runs a number is from; `missing` has the exceptions."""
        return f"{self.experiment.runs} runs" if self.experiment.runs > 1 else "1 run"

    @property
    def caption(self) -> str:
        """Say what a number is, from how many runs, at which scale, and of which tasks."""
        spread = f"mean ± sample standard deviation over {self.runs}" if self.experiment.runs > 1 else "of 1 run"
        text = f"Accuracy (%) {MEANINGS[self.experiment.value]}, {spread}; {self.experiment.profile}."
        dealt = self.found.answers[0].requests[0].partition
        if self.experiment.value == "final" and dealt is not None:
            text += f" The classes of the tasks are {partitions.name(dealt)}."
        return text

    @property
    def missing(self) -> tuple[str, ...]:
        """Say of every row which cells have fewer runs than the experiment asks for."""
        return tuple(text for line in self.lines if (text := _missing(line, self.columns)))


def compare(found: Found) -> Comparison:
    """Lay out what was found, with the average of the tasks for a last column where the columns are tasks."""
    experiment = found.experiment
    lines = []
    for answer in found.answers:
        published: list[Cell | None] = [*answer.row.published] or [None] * len(experiment.columns)
        columns = _columns(experiment, answer)
        if experiment.value == "final":
            columns.append(_percent(average_accuracy(matrices(answer.runs[0])).tolist()) if answer.runs[0] else ())
            means = [cell.mean for cell in answer.row.published]
            published.append(Cell(fmean(means), math.nan) if means else None)  # the paper gives no average
        entries = tuple(Entry(runs, experiment.runs, cell) for runs, cell in zip(columns, published, strict=True))
        lines.append(Line(answer.row.label, answer.row.method, entries))
    names = (*experiment.columns, *(["average"] if experiment.value == "final" else []))
    return Comparison(found, names, tuple(lines))


def with_times(comparison: Comparison, ratios: Mapping[str, float]) -> Comparison:
    """Add what a step costs beside SGD's, as `ogd bench` measured it, to a table of OGD over `every`."""
    lines = []
    for line, answer in zip(comparison.lines, comparison.found.answers, strict=True):
        key = SPEEDS.get(answer.row.settings[0].get("every", 1), "")
        ratio = 1.0 if line.method == "sgd" else ratios.get(key)
        lines.append(replace(line, aside="–" if ratio is None else f"{ratio:.1f} ×"))
    return replace(comparison, lines=tuple(lines), aside="time of a step / SGD's")


def _columns(experiment: Experiment, answer: Answer) -> list[tuple[float, ...]]:
    """Return the percentages of the runs found, for each column."""
    if experiment.value == "final":
        if not answer.runs[0]:
            return [()] * len(experiment.columns)
        return [_percent(column) for column in final_accuracy(matrices(answer.runs[0])).T.tolist()]
    measure = average_accuracy if experiment.value == "average" else _first
    return [_percent([float(measure(record.accuracy)) for record in runs]) for runs in answer.runs]


def _first(accuracy: list[list[float]]) -> float:
    return float(final_accuracy(accuracy)[0])


def _percent(fractions: list[float]) -> tuple[float, ...]:
    return tuple(100 * value for value in fractions)


def _missing(line: Line, columns: tuple[str, ...]) -> str:
    short: dict[tuple[int, int], list[str]] = {}
    for entry, column in zip(line.entries, columns, strict=True):
        if len(entry.runs) < entry.wanted:
            short.setdefault((len(entry.runs), entry.wanted), []).append(column)
    parts = []
    for (there, wanted), names in short.items():
        what = f"{there} of {wanted} runs" if there else "not run yet"
        parts.append(what if len(names) == len(columns) else f"{what} at {', '.join(names)}")
    return f"{line.label}: {'; '.join(parts)}" if parts else ""
