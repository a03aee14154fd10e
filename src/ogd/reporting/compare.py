"""What was found of an experiment → cells: our runs, what was published, the difference and a mark."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from ogd.catalogue import METHODS, Look
from ogd.experiments.answers import Answer, Found
from ogd.experiments.experiment import YARDSTICK, Cell, Experiment
from ogd.records import average_accuracy, final_accuracy
from ogd.reporting.judge import Mark, judge
from ogd.reporting.tables import matrices

MEANINGS = {
    "final": "on each task after the last",
    "first": "on task 1 after the last task",
    "average": "averaged over the tasks after the last",
}


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
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / math.sqrt(len(self.runs)) if self.runs else math.nan

    @property
    def difference(self) -> float:
        return self.mean - self.published.mean if self.published else math.nan

    @property
    def mark(self) -> Mark | None:
        return judge(self.mean, self.error, self.published) if self.published else None


@dataclass(frozen=True)
class Line:
    """A row of an experiment as cells; `aside` stands in a last column of its own."""

    label: str
    method: str
    look: Look
    entries: tuple[Entry, ...]
    subject: bool = False
    aside: str = ""

    @property
    def there(self) -> bool:
        """Whether any of its runs is there."""
        return any(entry.runs for entry in self.entries)


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
        request = self.found.answers[0].requests[0]
        if self.experiment.value == "final" and request.partition is not None:
            text += f" The classes of the tasks are {'/'.join(request.task_names)}."
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
        row = answer.row
        lines.append(Line(row.label, row.method, row.look or METHODS[row.method].look, entries, row.subject))
    names = (*experiment.columns, *(["average"] if experiment.value == "final" else []))
    return Comparison(found, names, tuple(lines))


def with_times(comparison: Comparison, ratios: Mapping[str, float]) -> Comparison:
    """Add what a step costs beside SGD's, as `ogd bench` measured it, where a row names its ratio."""
    rows = comparison.experiment.rows
    if not any(row.speed for row in rows):
        return comparison
    known = {**ratios, YARDSTICK: 1.0}
    asides = [f"{known[row.speed]:.1f} ×" if row.speed in known else "–" for row in rows]
    lines = [replace(line, aside=aside) for line, aside in zip(comparison.lines, asides, strict=True)]
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
