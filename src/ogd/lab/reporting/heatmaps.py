"""The accuracy matrix of every row of a table as a heat map: after task i, on task j."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ogd.lab.experiments.runs import ExperimentRuns, RowRuns
from ogd.lab.reporting import traces
from ogd.lab.reporting.style import PART, canvas, settle, styled
from ogd.lab.reporting.tables import Array, matrices

ACROSS = 3


def draw(found: ExperimentRuns) -> Figure:
    """Return one panel per row; tasks that were not trained yet stand muted and without a colour."""
    there = [answer for answer in found.answers if answer.runs[0]]
    down = math.ceil(len(there) / ACROSS)
    scale = Normalize(lowest(found), 100)
    with styled():
        figure = canvas(8.6, 2.75 * down + 0.2)
        panels: list[Axes] = list(np.ravel(figure.subplots(down, ACROSS, squeeze=False)))
        for answer, axes in zip(there, panels, strict=False):
            traces.matrix(axes, _matrix(answer), scale)
            few = len(answer.runs[0]) < found.experiment.runs
            runs = f" ({len(answer.runs[0])} of {found.experiment.runs} runs)" if few else ""
            axes.set_title(answer.row.label + runs)
            axes.set_gid(f"{PART}{answer.row.method}")
        for axes in panels[len(there) :]:
            axes.remove()
        figure.supxlabel("accuracy (%) on task", fontsize="medium")
        figure.supylabel("after training on task", fontsize="medium")
        return settle(figure)


def lowest(found: ExperimentRuns) -> float:
    """Return where the colours begin, the same for all rows."""
    return min(traces.floor(_matrix(answer)) for answer in found.answers if answer.runs[0])


def _matrix(answer: RowRuns) -> Array:
    """Return the mean over runs in percent, (tasks, tasks): without the initial weights' row."""
    return 100 * np.asarray(matrices(answer.runs[0]).mean(0)[1:])
