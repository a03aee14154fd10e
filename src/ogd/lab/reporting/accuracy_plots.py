"""Accuracy on each task while others are learned, as lines and as heat maps: for the page and for `ogd.lab.plot`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import blended_transform_factory

from ogd.lab.catalogue.looks import MUTED, Look
from ogd.lab.experiments.runs import ExperimentRuns, RowRuns
from ogd.lab.reporting.style import PART, WIDTH, canvas, grid, settle, styled
from ogd.lab.reporting.tables import Array, matrices, with_dead

ACROSS = 2  # heat maps next to one another
COLOURS = colormaps["viridis"]  # perceptually uniform, and read by the colour-blind
GAP = 0.05  # between two cells of a matrix
APART = 0.055  # of the axis: two labels that are nearer would touch


@dataclass(frozen=True, eq=False)
class Trace:
    """A line: `values[r, i]` in percent of run r after i + 1 tasks, NaN where there is nothing to draw."""

    label: str
    values: Array
    look: Look
    subject: bool = False
    method: str = ""

    @property
    def mean(self) -> Array:
        return np.asarray(self.values.mean(0))

    @property
    def std(self) -> Array:
        """The sample standard deviation; zero where there is one run."""
        return np.asarray(self.values.std(0, ddof=1)) if len(self.values) > 1 else np.zeros(self.values.shape[1])


def draw_traces(axes: Axes, traces: Sequence[Trace]) -> None:
    """Draw each trace over the tasks learned, a band of ± one standard deviation round it and its name at its end."""
    tasks = traces[0].values.shape[1]
    x = np.arange(1, tasks + 1)
    for trace in traces:
        look, mean, gid = trace.look, trace.mean, f"{PART}{trace.method}" if trace.method else None
        axes.plot(x, mean, color=look.colour, ls=look.dashes, marker=look.marker, lw=2.4 if trace.subject else 1.4,
                  zorder=4 if trace.subject else 3, gid=gid)  # fmt: skip
        if len(trace.values) > 1:
            axes.fill_between(x, mean - trace.std, mean + trace.std, color=look.colour, alpha=0.15, lw=0, gid=gid)
    low, high = axes.get_ylim()
    axes.set(ylim=(low, min(high, 100.5)), xlim=(0.85, tasks + 0.15), xlabel="tasks learned")
    axes.set_xticks(x)
    grid(axes)
    low, high = axes.get_ylim()
    right = blended_transform_factory(axes.transAxes, axes.transData)
    for trace, y in zip(traces, spread([trace.mean[-1] for trace in traces], low, high), strict=True):
        axes.text(1.02, y, trace.label, transform=right, color=trace.look.colour, va="center",
                  weight="bold" if trace.subject else "normal",
                  gid=f"{PART}{trace.method}" if trace.method else None)  # fmt: skip


def spread(ends: Sequence[float], low: float, high: float) -> list[float]:
    """Return where labels stand: at the ends of their lines, moved apart as far as they would touch.

    Examples:
        >>> [round(y, 1) for y in spread([50.0, 90.0, 90.5], 0, 100)]
        [50.0, 90.0, 95.5]
        >>> [round(y, 1) for y in spread([99.0, 100.0], 0, 100)]
        [94.5, 100.0]
    """
    step = APART * (high - low)
    order = np.argsort(ends, kind="stable")
    places = np.asarray(ends, dtype=np.float64)[order]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + step)
    top = high
    for i in reversed(range(len(places))):
        places[i] = top = min(places[i], top)
        top -= step
    return [float(place) for place in places[np.argsort(order)]]


def draw_matrix(axes: Axes, percent: Array, scale: Normalize) -> None:
    """Draw accuracies (tasks, tasks), after task i on task j; tasks that were not trained yet have no colour."""
    tasks = len(percent)
    for (i, j), value in np.ndenumerate(percent):
        colour = MUTED
        if j <= i:  # task j has been trained
            red, green, blue, _ = COLOURS(scale(value))
            axes.add_patch(Rectangle((j + GAP / 2, i + GAP / 2), 1 - GAP, 1 - GAP, fc=(red, green, blue), lw=0))
            colour = "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else "#ffffff"
        axes.text(j + 0.5, i + 0.5, f"{value:.1f}", ha="center", va="center", fontsize=8.5, color=colour)
    axes.set(xlim=(0, tasks), ylim=(tasks, 0), aspect="equal")
    ticks, names = np.arange(tasks) + 0.5, [str(task) for task in range(1, tasks + 1)]
    axes.set_xticks(ticks, names)
    axes.set_yticks(ticks, names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def colour_floor(percent: Array) -> float:
    """Return where the colours of a matrix begin: the smallest accuracy on a task seen, rounded down to ten."""
    seen = np.tril_indices(percent.shape[-1])
    return float(np.floor(percent[..., seen[0], seen[1]].min() / 10) * 10)


def heat_maps(found: ExperimentRuns) -> Figure:
    """Draw the accuracy matrix of every row of a table; tasks that were not trained yet have no colour."""
    there = [answer for answer in found.answers if answer.runs[0]]
    down = math.ceil(len(there) / ACROSS)
    scale = Normalize(lowest_colour(found), 100)
    with styled():
        figure = canvas(WIDTH, 2.6 * down + 0.2)
        panels: list[Axes] = list(np.ravel(figure.subplots(down, ACROSS, squeeze=False)))
        for answer, axes in zip(there, panels, strict=False):
            draw_matrix(axes, _matrix(answer), scale)
            few = len(answer.runs[0]) < found.experiment.runs
            runs = f" ({len(answer.runs[0])} of {found.experiment.runs} runs)" if few else ""
            axes.set_title(with_dead(answer.row.label, answer.runs[0]) + runs)
            axes.set_gid(f"{PART}{answer.row.method}")
        for axes in panels[len(there) :]:
            axes.remove()
        figure.supxlabel("accuracy (%) on task", fontsize="medium")
        figure.supylabel("after training on task", fontsize="medium")
        return settle(figure)


def lowest_colour(found: ExperimentRuns) -> float:
    """Return where the colours begin, the same for all rows."""
    return min(colour_floor(_matrix(answer)) for answer in found.answers if answer.runs[0])


def _matrix(answer: RowRuns) -> Array:
    """Return the mean over runs in percent, (tasks, tasks): without the initial weights' row."""
    return 100 * np.asarray(matrices(answer.runs[0]).mean(0)[1:])
