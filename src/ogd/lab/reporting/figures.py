"""The figures, by kind of drawing: curves as in the paper's Figure 2, bars as in 3, panels as in 4, lines as in 5."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ogd.lab.benchmarks.rules import task_names
from ogd.lab.catalogue import METHODS
from ogd.lab.catalogue.looks import INK, MUTED
from ogd.lab.experiments.experiment import Drawing
from ogd.lab.records import RunRecord
from ogd.lab.reporting.cells import Line
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.style import PART, WIDTH, canvas, grid, legend, settle, styled

Array = npt.NDArray[np.float64]
RINGS = "chosen on validation data"
MEASURES = {
    "final": "accuracy (%)",
    "first": "accuracy on task 1 (%)",
    "last": "accuracy on the last task (%)",
    "average": "average over the tasks (%)",
}


def draw(comparison: Comparison) -> Figure:
    """Return the figure of an experiment that has a drawing."""
    with styled():
        return settle(FIGURES[drawing(comparison).kind](comparison))


def curves(comparison: Comparison) -> Figure:
    """Draw the accuracy on each task while all are learned in turn: a panel per task, one above the other."""
    tasks = len(comparison.experiment.columns)
    length = comparison.found.answers[0].requests[0].epochs  # of a task
    figure = canvas(WIDTH, 1.7 * tasks + 0.6)
    panels: list[Axes] = list(np.ravel(figure.subplots(tasks, 1, sharex=True, sharey=True)))
    lowest = 100.0
    for number, (line, answer) in enumerate(zip(comparison.lines, comparison.found.answers, strict=True)):
        runs = [record for record in answer.runs[0] if record.curve is not None]
        if not runs:
            continue
        x, values = over_time(runs)
        for task, axes in enumerate(panels):
            y = _band(axes, x, values[:, :, task], line, 2 * number)
            settled = y[x >= (task + 0.5) * length]  # the rise from chance is cut off, as in the paper
            lowest = min(lowest, float(settled.min(initial=100.0)))
    for task, axes in enumerate(panels):
        grid(axes)
        axes.set(ylim=(math.floor(lowest / 5) * 5 - 1, 100), xlim=(0, tasks * length))
        axes.set_ylabel(f"accuracy on\ntask {task + 1} (%)")
        for switch in range(1, tasks):
            axes.axvline(switch * length, color=MUTED, ls=(0, (4, 3)), lw=0.9, zorder=1)
        above = panels[0].get_xaxis_transform()
        panels[0].text(
            (task + 0.5) * length, 1.02, f"training on task {task + 1}", transform=above, ha="center", color=MUTED
        )
    panels[-1].set_xlabel(drawing(comparison).axis or "epochs")
    legend(figure, comparison.lines)
    return figure


def bars(comparison: Comparison) -> Figure:
    """Draw a group of bars per column; over a setting each stands where its value is, so that the axis is true."""
    where, names = places(comparison)
    gap = float(np.diff(np.sort(where)).min(initial=math.inf)) if len(where) > 1 else 1.0
    figure = canvas(WIDTH, 3.6)
    axes = figure.subplots()
    _bars(axes, comparison, where, 0.8 * gap)
    axes.set_xticks(where, names)
    axes.set(xlabel=drawing(comparison).axis, ylabel=MEASURES[comparison.experiment.value])
    axes.set_xlim(where.min() - 0.6 * gap, where.max() + 0.6 * gap)
    legend(figure, comparison.lines, filled=True)
    return figure


def panels(comparison: Comparison) -> Figure:
    """Draw a plot per column, with a bar per row."""
    figure = canvas(WIDTH, 3.6)
    plots: list[Axes] = list(np.ravel(figure.subplots(1, len(comparison.columns), sharey=True)))
    for column, axes in enumerate(plots):
        _bars(axes, comparison, np.zeros(1), 0.9, column)
        axes.set_title(_heading(comparison, column), loc="center", fontsize=8.5)
        axes.set_xticks([])
        axes.set_xlim(-0.55, 0.55)
        if column:
            axes.tick_params(left=False)
            axes.spines["left"].set_visible(False)
    plots[0].set_ylabel(MEASURES[comparison.experiment.value])
    figure.supxlabel(drawing(comparison).axis, fontsize="medium")
    legend(figure, comparison.lines, filled=True)
    return figure


def lines(comparison: Comparison) -> Figure:
    """Draw a line per row; over an option that was tuned a ring is round the value that validation data chose."""
    where, names = places(comparison)
    figure = canvas(WIDTH, 3.6)
    axes = figure.subplots()
    for line in comparison.lines:
        _points(axes, where, line)
    ring = Line2D([], [], ls="none", marker="o", ms=9, mfc="none", mec=INK, label=RINGS)
    for x, y in rings(comparison):
        axes.plot([x], [y], "o", ms=11, mfc="none", mec=INK, mew=0.9)
    if drawing(comparison).log:
        axes.set_xscale("log")
    axes.set_xticks(where, names)
    axes.set_xticks([], minor=True)
    axes.set(xlabel=drawing(comparison).axis, ylabel=MEASURES[comparison.experiment.value])
    grid(axes)
    legend(figure, comparison.lines, *([ring] if rings(comparison) else []))
    return figure


FIGURES: dict[str, Callable[[Comparison], Figure]] = {"bars": bars, "curves": curves, "lines": lines, "panels": panels}


def drawing(comparison: Comparison) -> Drawing:
    found = comparison.experiment.drawing
    if found is None:
        raise ValueError(f"{comparison.experiment.name} is a table: it has no drawing")
    return found


def places(comparison: Comparison) -> tuple[Array, list[str]]:
    """Return where the columns stand on the x axis, and what is written there."""
    over = drawing(comparison)
    if not over.over:
        return np.arange(len(comparison.columns), dtype=np.float64), list(comparison.columns)
    where = [over.where(setting) for setting in comparison.experiment.rows[0].settings]
    return np.array(where), [f"{value:g}" for value in where]


def _heading(comparison: Comparison, column: int) -> str:
    """Return a column's name, below the classes of its tasks where a seed dealt them out."""
    name, requests = comparison.columns[column], comparison.found.answers[0].requests
    if column >= len(requests) or requests[column].partition is None:
        return name
    classes = task_names(requests[column])
    return "\n".join([*classes, *([] if name == "/".join(classes) else [f"({name})"])])


def rings(comparison: Comparison) -> list[tuple[float, float]]:
    """Return where lines over a tuned option of their method pass the value that `ogd tune` chose."""
    found = []
    for line, row in zip(comparison.lines, comparison.experiment.rows, strict=True):
        tuned = {option.name: dict(option.tuned) for option in METHODS[row.method].options}
        chosen = tuned.get(drawing(comparison).over, {}).get(row.settings[0]["benchmark"])
        found += [
            (x, e.mean) for x, e in zip(places(comparison)[0], line.entries, strict=True) if x == chosen and e.runs
        ]
    return found


def over_time(runs: list[RunRecord]) -> tuple[Array, Array]:
    """Return the epochs and the percentages (runs, points, tasks), NaN before a task began."""
    first = runs[0]
    assert first.curve is not None
    steps = np.array(first.curve.steps, dtype=np.float64)
    every = [record.curve.accuracy for record in runs if record.curve is not None]
    values = 100 * np.array(every, dtype=np.float64)
    return steps / steps[-1] * first.request.epochs * first.request.tasks, values


def _band(axes: Axes, x: Array, values: Array, line: Line, offset: int) -> Array:
    """Draw the mean of (runs, points) with a band of ± one standard deviation, and return it."""
    look, mean = line.look, values.mean(0)
    axes.plot(x, mean, color=look.colour, ls=look.dashes, lw=1.2, zorder=3 + line.subject, marker=look.marker, ms=3.5,
              markevery=(offset, 10), gid=f"{PART}{line.method}")  # fmt: skip
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=look.colour, alpha=0.18, lw=0, zorder=2,
                          gid=f"{PART}{line.method}")  # fmt: skip
    return np.asarray(mean)


def _bars(axes: Axes, comparison: Comparison, where: Array, width: float, first: int = 0) -> None:
    """Draw the columns from `first` on as groups of bars at `where`; the axis begins at a round number below all."""
    each = width / len(comparison.lines)
    for number, line in enumerate(comparison.lines):
        entries = line.entries[first : first + len(where)]
        x = where + (number - (len(comparison.lines) - 1) / 2) * each
        means = np.array([entry.mean for entry in entries])
        errors = np.nan_to_num([entry.std for entry in entries])
        there = ~np.isnan(means)
        bars = axes.bar(x[there], means[there], 0.92 * each, color=line.look.colour, lw=0)
        ends = axes.errorbar(x[there], means[there], errors[there], fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5)
        _mark([*bars, *ends.get_children()], line)
    axes.set_ylim(_floor(comparison), 100)
    grid(axes)


def _floor(comparison: Comparison) -> float:
    entries = [entry for line in comparison.lines for entry in line.entries if not math.isnan(entry.mean)]
    lowest = min((entry.mean - (0 if math.isnan(entry.std) else entry.std) for entry in entries), default=0.0)
    return max(0.0, math.floor((lowest - 2) / 10) * 10.0)


def _points(axes: Axes, where: Array, line: Line) -> None:
    """Draw a line with error bars; it breaks where a column was not run, or where all runs are dead."""
    means = [entry.mean for entry in line.entries]
    errors = np.nan_to_num([entry.std for entry in line.entries])
    look = line.look
    drawn = axes.errorbar(
        where, means, errors, elinewidth=0.9, zorder=3 + line.subject, color=look.colour, ls=look.dashes,
        marker=look.marker,
    )  # fmt: skip
    _mark(drawn.get_children(), line)


def _mark(drawn: Iterable[Artist], line: Line) -> None:
    """Mark which method this belongs to, so that the page can hide it."""
    for artist in drawn:
        artist.set_gid(f"{PART}{line.method}")
