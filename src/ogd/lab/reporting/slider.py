"""The figure with a slider: every method's accuracy on each task learned so far, after task 1, 2, …"""

import json

import numpy as np
from matplotlib.figure import Figure

from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.style import PART, WIDTH, canvas, grid, settle, styled
from ogd.lab.reporting.tables import Array, matrices


def after_name(comparison: Comparison) -> str:
    """Return the figure's name among those of the page."""
    return f"{comparison.experiment.name}-after"


def after_tasks(comparison: Comparison) -> tuple[Figure, str]:
    """Draw the accuracies after the last task, and return the places of all lines after each task.

    The places are JSON, [line][task learned last][task] → [x, y] in points from the upper left corner.
    """
    found = [
        (line.method, line.look, line.subject, 100 * np.asarray(matrices(answer.runs[0]).mean(0)[1:]))
        for line, answer in zip(comparison.lines, comparison.found.answers, strict=False)
        if answer.runs[0]
    ]
    found.sort(key=lambda line: line[2])  # as they lie in the SVG: the method in question is drawn on top
    tasks = len(found[0][-1])
    x = np.arange(1, tasks + 1)
    lowest = min(float(percent[np.tril_indices(tasks)].min()) for *_, percent in found)
    with styled():
        figure = canvas(WIDTH, 3.2)
        axes = figure.subplots()
        for method, look, subject, percent in found:
            axes.plot(x, percent[-1], color=look.colour, ls=look.dashes, marker=look.marker, lw=2.4 if subject else 1.4,
                      zorder=3 + subject, gid=f"{PART}{method}")  # fmt: skip
        axes.set(ylim=(np.floor(lowest / 5) * 5 - 1, 100.5), xlim=(0.85, tasks + 0.15), xlabel="task", xticks=x)
        axes.set_ylabel("accuracy (%)")
        grid(axes)
        settle(figure)

    def place(task: int, value: float) -> list[float]:
        across, up = axes.transData.transform((task, value))
        return [round(float(v) * 72 / figure.dpi, 1) for v in (across, figure.bbox.height - up)]

    def places(percent: Array) -> list[list[list[float]]]:
        return [[place(j + 1, percent[i, j]) for j in range(i + 1)] for i in range(tasks)]

    return figure, json.dumps([places(percent) for *_, percent in found])
