"""The accuracy matrix of every row of a table as a heat map: after task i, on task j."""

import math

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ogd.experiments.answers import Answer, Found
from ogd.reporting.style import MUTED, canvas, settle, styled
from ogd.reporting.tables import matrices

Array = npt.NDArray[np.float64]
COLOURS = colormaps["viridis"]  # perceptually uniform, and read by the colour-blind
ACROSS = 3
GAP = 0.05


def draw(found: Found) -> Figure:
    """Return one panel per row; tasks that were not trained yet stand muted and without a colour."""
    there = [answer for answer in found.answers if answer.runs[0]]
    down = math.ceil(len(there) / ACROSS)
    scale = Normalize(lowest(found), 100)
    with styled():
        figure = canvas(8.6, 2.75 * down + 0.2)
        panels: list[Axes] = list(np.ravel(figure.subplots(down, ACROSS, squeeze=False)))
        for answer, axes in zip(there, panels, strict=False):
            _panel(axes, _matrix(answer), scale)
            few = len(answer.runs[0]) < found.experiment.runs
            runs = f" ({len(answer.runs[0])} of {found.experiment.runs} runs)" if few else ""
            axes.set_title(answer.row.label + runs)
        for axes in panels[len(there) :]:
            axes.remove()
        figure.supxlabel("accuracy (%) on task", fontsize="medium")
        figure.supylabel("after training on task", fontsize="medium")
        return settle(figure)


def lowest(found: Found) -> float:
    """Return where the colours begin: the smallest accuracy on a task seen, rounded down to ten."""
    seen = [_matrix(answer)[np.tril_indices(answer.requests[0].tasks)] for answer in found.answers if answer.runs[0]]
    return float(np.floor(np.concatenate(seen).min() / 10) * 10)


def _matrix(answer: Answer) -> Array:
    """Return the mean over runs in percent, (tasks, tasks): without the initial weights' row."""
    return 100 * np.asarray(matrices(answer.runs[0]).mean(0)[1:])


def _panel(axes: Axes, matrix: Array, scale: Normalize) -> None:
    tasks = len(matrix)
    for (i, j), value in np.ndenumerate(matrix):
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
