"""What a reader sees who points at a figure: the values of all methods there, as areas that lie over its SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.figures import drawing, over_time, places
from ogd.lab.reporting.formats import ours
from ogd.lab.reporting.tables import mean_std

MOST = 60  # areas of one panel
Values = Sequence[tuple[str, str]]  # a label, and what stands there


@dataclass(frozen=True)
class Spot:
    """An area in points from the figure's upper left corner, and what there is to say of it, a line per method."""

    x: float
    y: float
    width: float
    height: float
    text: str


def spots(figure: Figure, comparison: Comparison) -> list[Spot]:
    """Return the areas of a figure that `figures.draw` drew, those of a panel from left to right."""
    kind, axes = drawing(comparison).kind, figure.axes
    columns = [
        (name, [(line.label, ours(line.entries[i])) for line in comparison.lines if line.entries[i].runs])
        for i, name in enumerate(comparison.columns)
    ]
    if kind == "curves":
        return [spot for task, panel in enumerate(axes) for spot in strips(panel, *_over_time(comparison, task))]
    if kind == "panels":
        return [spot for panel, column in zip(axes, columns, strict=False) for spot in strips(panel, [0.0], [column])]
    return list(strips(axes[0], places(comparison)[0], columns))


def strips(axes: Axes, x: npt.ArrayLike, values: Sequence[tuple[str, Values]]) -> Iterator[Spot]:
    """Divide a panel into an upright strip per place on its x axis, each as far as halfway to its neighbours."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    points = 72 / figure.dpi
    box = axes.get_window_extent()
    where = axes.transData.transform([(value, 0) for value in np.atleast_1d(np.asarray(x, dtype=np.float64))])[:, 0]
    order = np.argsort(where)
    edges = np.concatenate([[box.x0], (where[order][1:] + where[order][:-1]) / 2, [box.x1]]) * points
    top, height = (figure.bbox.height - box.y1) * points, box.height * points
    for number, (left, right) in zip(order, pairwise(edges), strict=True):
        heading, said = values[number]
        text = "\n".join([heading, *(f"{label}: {value}" for label, value in said)])
        yield Spot(round(float(left), 1), round(top, 1), round(float(right - left), 1), round(height, 1), text)


def _over_time(comparison: Comparison, task: int) -> tuple[list[float], list[tuple[str, Values]]]:
    """Return where on the x axis of a task's curves a hover text stands, and the text."""
    said: dict[float, list[tuple[str, str]]] = {}
    for line, answer in zip(comparison.lines, comparison.found.answers, strict=True):
        runs = [record for record in answer.runs[0] if record.curve is not None]
        if not runs:
            continue
        x, values = over_time(runs)
        begun = [k for k in range(len(x)) if not np.isnan(values[:, k, task]).any()]
        for k in begun[:: max(1, -(-len(begun) // MOST))]:
            said.setdefault(float(x[k]), []).append((line.label, mean_std(values[:, k, task])))
    return list(said), [(f"task {task + 1} after {x:.3g} epochs", lines) for x, lines in said.items()]
