"""Records → tables of text, and sparklines for the terminal. Nothing here trains, or imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ogd.lab.benchmarks.rules import task_names
from ogd.lab.catalogue import METHODS
from ogd.lab.records import RunRecord, average_accuracy, final_accuracy, forgetting
from ogd.lab.records.speed import Ratio
from ogd.lab.records.tuning import Tuning
from ogd.visible_text import visible

Array = npt.NDArray[np.float64]
WIDE = Console(width=10_000).options  # for measuring
BLOCKS = "▁▂▃▄▅▆▇█"
BEFORE = "·"  # a task that has not begun
MOST_TASKS, MOST_POINTS = 6, 24  # what fits beside one another
DEAD = "A dead run gives the same outputs for most test inputs of every task; means include it."


class _Console(Console):
    """A console whose reader may leave early: the command line knows what to do then."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass(frozen=True)
class Table:
    """A table as text: what it shows, its columns, and groups of lines that belong together."""

    title: str
    caption: str
    columns: tuple[str, ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...]
    prose: bool = False  # the last column is a sentence, which may wrap

    def show(self, markdown: bool = False) -> None:
        """Print the table. No figure is ever cut: in a narrow terminal its ± goes below it, or the line wraps."""
        if markdown:
            print(visible(self.markdown(), keep="\n"))
            return
        console = _Console()
        table = self._rich()
        if console.is_terminal and console.measure(table, options=WIDE).maximum > console.width:
            table = self._rich(stacked=True)
        width = console.measure(table, options=WIDE).maximum
        if self.prose and console.is_terminal:
            width = min(width, console.width)
        console.print(_plain(self.title, style="bold"), soft_wrap=True)
        _Console(width=max(width, console.width)).print(table, width=width)
        console.print(Text(visible(f"{self.caption}\n", keep="\n")), soft_wrap=not console.is_terminal)

    def _rich(self, stacked: bool = False) -> RichTable:
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        last = len(self.columns) - 1
        for number, column in enumerate(self.columns):
            text = self.prose and number == last
            table.add_column(_plain(column), justify="left" if number == 0 or text else "right", no_wrap=not text)
        for group in self.groups:
            for number, line in enumerate(group):
                cells = [_plain(cell, broken=" ± " if stacked else "") for cell in line]
                table.add_row(*cells, end_section=len(group) > 1 and number == len(group) - 1)
        return table

    def markdown(self) -> str:
        """Return the table for a document."""
        lines = [self.columns, ("---",) * len(self.columns), *(line for group in self.groups for line in group)]
        rows = "\n".join("| " + " | ".join(visible(cell).replace("|", r"\|") for cell in line) + " |" for line in lines)
        return f"**{visible(self.title)}** {self.caption}\n\n{rows}"


def _plain(text: str, broken: str = "", style: str = "") -> Text:
    """A text as it is, where rich would take `[v2]` for markup and `:x:` for a picture; on two lines where broken."""
    shown = visible(text)
    return Text(shown.replace(broken, f"\n{broken.lstrip()}") if broken else shown, style)


def overview(answers: Sequence[list[RunRecord]]) -> Table:
    """Summarise one benchmark: a line per method, which is a list of runs, a column per task, and two metrics."""
    request, runs = answers[0][0].request, len(answers[0])
    groups = []
    for records in answers:
        a, dead = matrices(records), count_dead(records)
        cells = [mean_std(column, dead=dead) for column in 100 * final_accuracy(a).T]
        cells += [mean_std(100 * values, dead=dead) for values in (average_accuracy(a), forgetting(a))]
        groups.append(((records[0].request.method, *cells),))
    caption = f"Accuracy (%) on each task after the last, {_spread(runs)}."
    caption += f" {DEAD}" if any(map(count_dead, answers)) else ""
    columns = ("method", *task_names(request), "average", "forgetting")
    return Table(f"{request.benchmark}, {request.tasks} tasks, {request.data}", caption, columns, tuple(groups))


def can_draw(out: TextIO) -> bool:
    """Whether `out` is a terminal that can show sparklines."""
    try:
        BLOCKS.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return out.isatty()


def sparklines(answers: Sequence[Sequence[RunRecord]]) -> Table:
    """Return a small plot for the terminal: a line of blocks per method and a column per task, from left to right.

    A point is the accuracy after a task, or a point of the curves where all runs have one.
    """
    request = answers[0][0].request
    series = [_series(records) for records in answers]
    shown = np.unique(np.linspace(0, request.tasks - 1, min(request.tasks, MOST_TASKS)).round().astype(int))
    ends, all_points = (np.concatenate([values[k:, shown] for values in series]) for k in (-1, 0))
    low, high = np.floor(10 * ends.min()) / 10, np.ceil(100 * np.nanmax(all_points)) / 100  # the rise is cut off
    lines = tuple(
        ((with_dead(records[0].request.method, records), *(sparkline(values[:, task], low, high) for task in shown)),)
        for records, values in zip(answers, series, strict=True)
    )
    names = task_names(request)
    left_out = f" Of {request.tasks} tasks {len(shown)} are shown." if len(shown) < request.tasks else ""
    caption = f"{BLOCKS[0]} is {100 * low:.0f} % or less, {BLOCKS[-1]} {100 * high:.0f} %; mean over runs.{left_out}"
    return Table("Each task while learning", caption, ("method", *(names[task] for task in shown)), lines)


def sparkline(values: Array, low: float, high: float) -> str:
    """Return values as blocks from `low` to `high`, two letters each where there are few; NaN is before the task.

    Examples:
        >>> sparkline(np.array([np.nan, 1.0, 0.8, 0.6]), 0.6, 1.0)
        '··██▅▅▁▁'
    """
    wide = 2 if len(values) <= MOST_POINTS // 2 else 1
    heights = np.clip((values - low) / max(high - low, 0.01) * (len(BLOCKS) - 1), 0, len(BLOCKS) - 1)
    return "".join((BEFORE if np.isnan(height) else BLOCKS[round(float(height))]) * wide for height in heights)


def _series(records: Sequence[RunRecord]) -> Array:
    """Return the mean over runs, (points, tasks), NaN before a task began."""
    curves = [record.curve.accuracy for record in records if record.curve is not None and record.curve.steps]
    if len(curves) == len(records):
        values = np.array(curves, dtype=np.float64).mean(0)
    else:
        values = matrices(records).mean(0)[1:]
        values[np.triu_indices(len(values), 1)] = np.nan
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).round().astype(int))
    return np.asarray(values[chosen])


def speeds(ratios: Sequence[Ratio]) -> Table:
    """Lay out what `ogd bench` measured."""
    lines = [(r.key, f"{r.median:.2f} ×", f"{r.low:.2f} … {r.high:.2f}", r.meaning) for r in ratios]
    caption = "Each the median of interleaved repeats in one process, on one thread."
    return Table(
        "This machine's speed", caption, ("what", "ratio", "lowest … highest", "measured"), (tuple(lines),), prose=True
    )


def scores(tuning: Tuning) -> Table:
    """Lay out what `ogd tune` found."""
    columns = list(zip(*tuning.scores, strict=True))
    cells = [
        "diverged or dead" if None in column else mean_std([100 * score for score in column]) for column in columns
    ]
    lines = [
        (f"{value:g}", cell, "chosen" if value == tuning.choice else "")
        for value, cell in zip(tuning.grid, cells, strict=True)
    ]
    caption = (
        f"Accuracy (%) on validation examples, averaged over the tasks after the last; {_spread(len(tuning.scores))}."
    )
    title = f"{METHODS[tuning.request.method].label}'s {tuning.option} on {tuning.request.benchmark}"
    return Table(title, caption, (tuning.option, "average", ""), (tuple(lines),))


def _spread(runs: int) -> str:
    return f"mean ± sample std over {runs} runs" if runs > 1 else "of 1 run"


def matrices(records: Sequence[RunRecord]) -> Array:
    """Stack the accuracy matrices of several runs: (runs, 1 + tasks, tasks)."""
    return np.array([record.accuracy for record in records])


def count_dead(records: Sequence[RunRecord]) -> int:
    return sum(record.dead for record in records)


def with_dead(label: str, records: Sequence[RunRecord]) -> str:
    """Return a label that says how many of the runs it stands for are dead."""
    dead = count_dead(records)
    return f"{label} ({dead} of {len(records)} dead)" if dead else label


def mean_std(values: npt.ArrayLike, digits: int = 1, dead: int = 0) -> str:
    """Write percentages as mean ± sample standard deviation, without the latter for a single run.

    `dead` is how many of the runs are dead.

    Examples:
        >>> mean_std([58.0, 60.0]), mean_std([58.0]), mean_std([float("nan")])
        ('59.0 ± 1.4', '58.0', '–')
        >>> mean_std([98.0, 50.0], dead=1), mean_std([50.0, 50.0], dead=2)
        ('74.0 ± 33.9, 1 of 2 dead', 'dead')
    """
    array: np.ndarray[Any, np.dtype[np.float64]] = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        return "–"
    if dead == len(array):
        return "dead"
    spread = f" ± {array.std(ddof=1):.{digits}f}" if len(array) > 1 else ""
    return f"{array.mean():.{digits}f}{spread}" + (f", {dead} of {len(array)} dead" if dead else "")


def signed(gap: float) -> str:
    """Write a difference with its sign, and nothing as nothing.

    Examples:
        >>> signed(1.25), signed(-0.04), signed(float("nan"))
        ('+1.2', '0.0', '–')
    """
    if np.isnan(gap):
        return "–"
    return f"{gap:+.1f}" if abs(gap) >= 0.05 else "0.0"
