"""What was found of an experiment → lines of cells: ours, what was published, or how many of these agree."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from ogd.lab.benchmarks.rules import task_names
from ogd.lab.catalogue import METHODS
from ogd.lab.experiments.experiment import YARDSTICK, Cell, Experiment, Row
from ogd.lab.experiments.runs import ExperimentRuns, RowRuns
from ogd.lab.records import average_accuracy, final_accuracy
from ogd.lab.reporting.cells import FORMULA, STRICT, Entry, Line, Tally
from ogd.lab.reporting.tables import DEAD, count_dead, matrices

ALONE = "ours only"
WHOLE = 0.5  # of its settings: what has fewer was begun, or shares settings with another table or figure
MEANINGS = {
    "final": "on each task after the last",
    "first": "on task 1 after the last task",
    "last": "on the last task after it was learned",
    "average": "averaged over the tasks after the last",
}


@dataclass(frozen=True)
class Comparison:
    """An experiment as a table: ours beside the paper's."""

    found: ExperimentRuns
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
    def shown(self) -> bool:
        """Whether enough of it was run for a table or figure of its own."""
        return self.found.share >= WHOLE

    @property
    def published(self) -> bool:
        return any(line.published for line in self.lines)

    @property
    def tally(self) -> Tally:
        """All published cells, without the averages that the paper does not give."""
        whole = len(self.experiment.columns)
        return Tally(tuple(entry for line in self.lines for entry in line.entries[:whole] if entry.published))

    @property
    def runs(self) -> str:
        """How many runs a number is from; `missing` has the exceptions."""
        counts = sorted({trained.runs for trained in self.experiment.trained})
        return f"{' or '.join(map(str, counts))} run{'s' if counts != [1] else ''}"

    @property
    def caption(self) -> str:
        """Say what a number is, from how many runs, at which scale, and of which tasks."""
        if self.experiment.parts:
            return (
                f"How many published cells ours agree with ({FORMULA}), are better than and fall short of, the same by "
                f"the strict count ({STRICT}), and the mean of |d| in points; {self.runs}; {self.experiment.profile}."
            )
        spread = f"mean ± sample standard deviation over {self.runs}" if self.experiment.runs > 1 else "of 1 run"
        text = f"Accuracy (%) {MEANINGS[self.experiment.value]}, {spread}; {self.experiment.profile}."
        asked = [request for answer in self.found.answers for request in answer.requests]
        partitions = {"/".join(task_names(request)) for request in asked if request.partition is not None}
        if self.experiment.value == "final" and len(partitions) == 1:
            text += f" The classes of the tasks are {partitions.pop()}."
        if any(line.alone for line in self.lines):
            text += f" Rows marked {ALONE!r} are not in the paper."
        if self.experiment.references:
            text += f" Published numbers were read in: {'; '.join(self._sources)}."
        return text

    @property
    def _sources(self) -> list[str]:
        """Every source, with the lines that came from it."""
        labels: dict[str, list[str]] = {}
        for reference in self.experiment.references:
            labels.setdefault(reference.source, []).append(reference.label)
        return [f"{source} ({', '.join(names)})" for source, names in labels.items()]

    @property
    def missing(self) -> tuple[str, ...]:
        """Say of every row, or of all tallies, which cells have fewer runs than the experiment asks for."""
        return tuple(text for line in self._counted if (text := _said(line, self.columns, _missing(line))))

    @property
    def dead_note(self) -> str:
        """Say which cells have dead runs, or nothing."""
        texts = [text for line in self._counted if (text := _said(line, self.columns, _dead(line)))]
        return f"Dead runs: {'. '.join(texts)}. {DEAD}" if texts else ""

    @property
    def _counted(self) -> tuple[Line, ...]:
        return self.lines[-1:] if self.experiment.parts else self.lines


def compare(found: ExperimentRuns) -> Comparison:
    """Lay out what was found, with the average of the tasks for a last column where the columns are tasks."""
    experiment = found.experiment
    if experiment.parts:
        return Comparison(found, experiment.columns, _agreement(found))
    published_at_all = any(row.published for row in experiment.rows)
    lines = []
    for answer in found.answers:
        published: list[Cell | None] = [*answer.row.published] or [None] * len(experiment.columns)
        columns = _columns(experiment, answer)
        if experiment.value == "final":
            columns.append(_percent(average_accuracy(matrices(answer.runs[0])).tolist()) if answer.runs[0] else ())
            means = [cell.mean for cell in answer.row.published]
            published.append(Cell(fmean(means), math.nan) if means else None)  # the paper gives no average
        dead = [count_dead(runs) for runs in answer.runs] * (len(columns) if experiment.value == "final" else 1)
        cells = zip(columns, published, dead, strict=True)
        entries = tuple(Entry(runs, experiment.runs, cell, experiment.digits, n) for runs, cell, n in cells)
        lines.append(_line(answer.row, entries, alone=published_at_all and not answer.row.published))
    aside = ("",) if experiment.value == "final" else ()  # of the average
    lines += [Line(reference.label, quoted=(*reference.cells, *aside)) for reference in experiment.references]
    names = (*experiment.columns, *(["average"] if experiment.value == "final" else []))
    return Comparison(found, names, tuple(lines))


def with_times(comparison: Comparison, ratios: Mapping[str, float]) -> Comparison:
    """Add what a step costs beside SGD's, as `ogd bench` measured it, where a row names its ratio."""
    rows = comparison.experiment.rows
    if not any(row.speed for row in rows):
        return comparison
    known = {**ratios, YARDSTICK: 1.0}
    asides = [f"{known[row.speed]:.1f} ×" if row.speed in known else "–" for row in rows]
    asides += ["–"] * len(comparison.experiment.references)
    lines = [replace(line, aside=aside) for line, aside in zip(comparison.lines, asides, strict=True)]
    return replace(comparison, lines=tuple(lines), aside="time of a step / SGD's")


def _line(row: Row, entries: tuple[Entry, ...], alone: bool) -> Line:
    look = row.look or METHODS[row.method].look
    return Line(row.label, entries, method=row.method, look=look, subject=row.subject, alone=alone)


def _agreement(found: ExperimentRuns) -> tuple[Line, ...]:
    """Return a line per table, a tally per version, and a last line over all tables."""
    lines = []
    for versions in found.parts:
        table = versions[0].experiment
        lines.append(Line(f"{table.where}, {table.name}", tallies=tuple(compare(one).tally for one in versions)))
    columns = zip(*(line.tallies for line in lines), strict=True)
    totals = [Tally(tuple(cell for tally in column for cell in tally.cells)) for column in columns]
    return (*lines, Line("All tables", tallies=tuple(totals)))


def _columns(experiment: Experiment, answer: RowRuns) -> list[tuple[float, ...]]:
    """Return the percentages of the runs found, for each column."""
    if experiment.value == "final":
        if not answer.runs[0]:
            return [()] * len(experiment.columns)
        return [_percent(column) for column in final_accuracy(matrices(answer.runs[0])).T.tolist()]
    return [_percent([_measure(experiment.value, record.accuracy) for record in runs]) for runs in answer.runs]


def _measure(value: str, accuracy: list[list[float]]) -> float:
    if value == "average":
        return float(average_accuracy(accuracy))
    return float(final_accuracy(accuracy)[{"first": 0, "last": -1}[value]])


def _percent(fractions: list[float]) -> tuple[float, ...]:
    return tuple(100 * value for value in fractions)


def _missing(line: Line) -> Iterator[tuple[int, str]]:
    """Yield what a line lacks, by column."""
    for column, entry in enumerate(line.entries):
        if len(entry.runs) < entry.wanted:
            yield column, f"{len(entry.runs)} of {entry.wanted} runs" if entry.runs else "not run yet"
    for column, tally in enumerate(line.tallies):
        for count, what in ((tally.missing, "not run yet"), (tally.few, "from fewer runs")):
            if count:
                yield column, f"{count} of {len(tally.cells)} cells {what}"


def _dead(line: Line) -> Iterator[tuple[int, str]]:
    """Yield how many runs or cells of a line are dead, by column."""
    for column, entry in enumerate(line.entries):
        if entry.dead:
            yield column, f"{entry.dead} of {len(entry.runs)}"
    for column, tally in enumerate(line.tallies):
        if tally.dead:
            yield column, f"in {tally.dead} of {len(tally.cells)} cells"


def _said(line: Line, columns: tuple[str, ...], facts: Iterable[tuple[int, str]]) -> str:
    """Return what is to be said of a line, with the columns of which it is true unless these are all."""
    where: dict[str, list[str]] = {}
    for column, what in facts:
        where.setdefault(what, []).append(columns[column])
    parts = [what if len(names) == len(columns) else f"{what} at {', '.join(names)}" for what, names in where.items()]
    return f"{line.label}: {'; '.join(parts)}" if parts else ""
