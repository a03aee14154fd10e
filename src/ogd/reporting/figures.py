"""The figures, drawn as the paper draws them: Figure 2's curves, bars for Figures 3 and 4, Figure 5's lines."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ogd import catalogue
from ogd.benchmarks import partition as partitions
from ogd.records import RunRecord
from ogd.reporting.compare import Comparison, Line
from ogd.reporting.drawing import INK, LOOKS, MUTED, canvas, grid, legend, settle, styled

Array = npt.NDArray[np.float64]


def draw(comparison: Comparison) -> Figure:
    """Return the figure of an experiment of that kind."""
    with styled():
        return settle(FIGURES[comparison.experiment.name](comparison))


def curves(comparison: Comparison) -> Figure:
    """Figure 2: the accuracy on each task while all are learned in turn, a panel a task, one above the other."""
    tasks = len(comparison.experiment.columns)
    length = comparison.found.answers[0].requests[0].epochs  # of a task
    figure = canvas(8, 1.9 * tasks + 0.6)
    panels: list[Axes] = list(np.ravel(figure.subplots(tasks, 1, sharex=True, sharey=True)))
    lowest = 100.0
    for number, (line, answer) in enumerate(zip(comparison.lines, comparison.found.answers, strict=True)):
        runs = [record for record in answer.runs[0] if record.curve is not None]
        if not runs:
            continue
        x, values = _curves(runs)
        for task, axes in enumerate(panels):
            y = _band(axes, x, values[:, :, task], line.method, 2 * number)
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
    panels[-1].set_xlabel("epochs")
    legend(figure, _drawn(comparison))
    return figure


def angles(comparison: Comparison) -> Figure:
    """Figure 3: a group of bars an angle, standing where the angle is, so that the axis is true."""
    where = [answer["angles"][1] for answer in comparison.experiment.rows[0].settings]
    figure = canvas(10, 4)
    axes = figure.subplots()
    _bars(axes, comparison, np.array(where, dtype=np.float64), 8.0)
    axes.set(xlabel="angle of task 2 (degrees)", ylabel="accuracy on task 1 (%)", xlim=(min(where) - 6, max(where) + 6))
    axes.set_xticks(where)
    legend(figure, _drawn(comparison), filled=True)
    return figure


def split_in_two(comparison: Comparison) -> Figure:
    """Figure 4: a plot a partition, a bar a method."""
    count = len(comparison.columns)
    figure = canvas(10, 3.2)
    panels: list[Axes] = list(np.ravel(figure.subplots(1, count, sharey=True)))
    for column, axes in enumerate(panels):
        _bars(axes, comparison, np.zeros(1), 0.9, column)
        dealt = comparison.found.answers[0].requests[column].partition or ()
        name, label = partitions.name(dealt), comparison.columns[column]
        seed = "" if label == name else f" ({label})"  # the table's columns say it so
        axes.set_title(name.replace("/", " / ") + seed, loc="center", fontsize=8.5)
        axes.set_xticks([])
        axes.set_xlim(-0.55, 0.55)
        if column:
            axes.tick_params(left=False)
            axes.spines["left"].set_visible(False)
    panels[0].set_ylabel("accuracy on task 1 (%)")
    figure.supxlabel("classes of task 1 / of task 2", fontsize="medium")
    legend(figure, _drawn(comparison), filled=True)
    return figure


def epochs(comparison: Comparison) -> Figure:
    """Figure 5: a line a method over the epochs a task."""
    where = [request.epochs for request in comparison.found.answers[0].requests]
    figure = canvas(6.5, 3.8)
    axes = figure.subplots()
    for line in comparison.lines:
        look = LOOKS[line.method]
        _points(axes, where, line, color=look.colour, ls=look.dashes, marker=look.marker)
    axes.set_xscale("log", base=2)
    axes.set_xticks(where, [str(value) for value in where])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="epochs a task", ylabel="accuracy on task 1 (%)")
    grid(axes)
    legend(figure, _drawn(comparison))
    return figure


def over_lambda(comparison: Comparison) -> Figure:
    """Draw EWC's average over λ, in EWC's colour, a marker a benchmark; a ring is round the λ that was chosen."""
    figure = canvas(6.5, 3.8)
    axes = figure.subplots()
    colour = LOOKS["ewc"].colour
    handles = []
    for line, row, marker, dashes in zip(
        comparison.lines, comparison.experiment.rows, "oDs", ("-", (0, (5, 1)), (0, (1, 1))), strict=True
    ):
        where = [setting["ewc_lambda"] for setting in row.settings]
        _points(axes, where, line, color=colour, ls=dashes, marker=marker)
        handles.append(Line2D([], [], color=colour, ls=dashes, marker=marker, label=line.label))
        chosen = catalogue.methods.EWC_LAMBDA.default_on(row.settings[0]["benchmark"])
        means = dict(zip(where, line.entries, strict=True))
        if chosen in means and means[chosen].runs:
            axes.plot([chosen], [means[chosen].mean], "o", ms=11, mfc="none", mec=INK, mew=0.9)
    handles.append(Line2D([], [], ls="none", marker="o", ms=9, mfc="none", mec=INK, label="chosen on validation data"))
    axes.set_xscale("log")
    axes.set_xticks(where, [f"{value:g}" for value in where])
    axes.set_xticks([], minor=True)
    axes.set_xlim(0.8 * min(where), 1.25 * max(where))
    axes.set(xlabel="λ", ylabel="average over 5 tasks (%)")
    grid(axes)
    figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=2.6)
    return figure


FIGURES: dict[str, Callable[[Comparison], Figure]] = {
    "curves": curves,
    "angles": angles,
    "partitions": split_in_two,
    "epochs": epochs,
    "lambda": over_lambda,
}


def _curves(runs: list[RunRecord]) -> tuple[Array, Array]:
    """Return the epochs and the percentages (runs, points, tasks), NaN before a task began."""
    first = runs[0]
    assert first.curve is not None
    steps = np.array(first.curve.steps, dtype=np.float64)
    every = [record.curve.accuracy for record in runs if record.curve is not None]
    values = 100 * np.array(every, dtype=np.float64)
    return steps / steps[-1] * first.request.epochs * first.request.tasks, values


def _band(axes: Axes, x: Array, values: Array, method: str, offset: int) -> Array:
    """Draw the mean of (runs, points) with a band of ± one standard deviation, and return it."""
    look, mean = LOOKS[method], values.mean(0)
    above = 4 if method == "ogd" else 3
    axes.plot(x, mean, color=look.colour, ls=look.dashes, lw=1.2, zorder=above, marker=look.marker, ms=3.5,
              markevery=(offset, 10))  # fmt: skip
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=look.colour, alpha=0.18, lw=0, zorder=2)
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
        axes.bar(x[there], means[there], 0.92 * each, color=LOOKS[line.method].colour, lw=0)
        axes.errorbar(x[there], means[there], errors[there], fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5)
    axes.set_ylim(_floor(comparison), 100)
    grid(axes)


def _floor(comparison: Comparison) -> float:
    entries = [entry for line in comparison.lines for entry in line.entries if entry.runs]
    lowest = min(entry.mean - (0 if math.isnan(entry.std) else entry.std) for entry in entries)
    return max(0.0, math.floor((lowest - 2) / 10) * 10.0)


def _points(axes: Axes, where: list[int] | list[float], line: Line, **look: Any) -> None:
    """Draw a line with error bars; it breaks where a column was not run."""
    means = [entry.mean for entry in line.entries]
    errors = np.nan_to_num([entry.std for entry in line.entries])
    axes.errorbar(where, means, errors, elinewidth=0.9, zorder=3 + (line.method == "ogd"), **look)


def _drawn(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the methods that have anything to show, with their labels."""
    return [(line.method, line.label) for line in comparison.lines if any(entry.runs for entry in line.entries)]
