"""A figure as part of the page: inline SVG that follows the reader's colours, with tooltips and a legend."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from ogd.lab.catalogue.looks import INK, MUTED, Look
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.figures import RINGS, drawing, over_time, places, rings
from ogd.lab.reporting.formats import ours
from ogd.lab.reporting.style import PART, svg
from ogd.lab.reporting.tables import Array, mean_std, with_dead

MOST = 60  # tooltips of one panel
Values = Sequence[tuple[str, str, str]]  # a label, what stands there, and the method
DASHED, DOTTED, MIXED = (3.7, 1.6), (1.0, 1.65), (6.4, 1.6, 1.0, 1.6)  # matplotlib's own, in widths of the line
NAMED = {"--": DASHED, "dashed": DASHED, ":": DOTTED, "dotted": DOTTED, "-.": MIXED, "dashdot": MIXED}
SIZE = 3.0  # of a marker, from its middle
RING = Markup(
    '<svg class="swatch" width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">'
    '<circle cx="6" cy="6" r="5" fill="none" stroke="currentColor"/></svg>'
)


@dataclass(frozen=True)
class Spot:
    """A tooltip: an area in points from the figure's upper left corner, and its text, a line per method."""

    x: float
    y: float
    width: float
    height: float
    text: str
    methods: tuple[str, ...]  # of its lines after the first; the page leaves out those that are switched off


def spots(figure: Figure, comparison: Comparison) -> list[Spot]:
    """Return the areas of a figure that `figures.draw` drew, those of a panel from left to right."""
    kind, axes = drawing(comparison).kind, figure.axes
    columns = [
        (name, [(line.label, ours(line.entries[i]), line.method) for line in comparison.lines if line.entries[i].runs])
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
        text = "\n".join([heading, *(f"{label}: {value}" for label, value, _ in said)])
        x0, y0, width, tall = (round(float(value), 1) for value in (left, top, right - left, height))
        yield Spot(x0, y0, width, tall, text, tuple(method for *_, method in said))


def _over_time(comparison: Comparison, task: int) -> tuple[list[float], list[tuple[str, Values]]]:
    """Return where on the x axis of a task's curves a hover text stands, and the text."""
    said: dict[float, list[tuple[str, str, str]]] = {}
    for line, answer in zip(comparison.lines, comparison.found.answers, strict=True):
        runs = [record for record in answer.runs[0] if record.curve is not None]
        if not runs:
            continue
        x, values = over_time(runs)
        begun = [k for k in range(len(x)) if not np.isnan(values[:, k, task]).any()]
        for k in begun[:: max(1, -(-len(begun) // MOST))]:
            text = (with_dead(line.label, runs), mean_std(values[:, k, task]), line.method)
            said.setdefault(float(x[k]), []).append(text)
    return list(said), [(f"task {task + 1} after {x:.3g} epochs", lines) for x, lines in said.items()]


def inline(figure: Figure, name: str, label: str, spots: Iterable[Spot] = ()) -> str:
    """Return a figure as SVG with text, for a page that holds other figures too. The page has a legend of its own."""
    top = 0.0
    for legend in figure.legends:
        top = (figure.bbox.height - legend.get_window_extent().y0) * 72 / figure.dpi
        legend.set_visible(False)
    match = re.search(
        r"<svg [^>]*?viewBox=\"0 0 ([\d.]+) ([\d.]+)\"[^>]*>(.*)</svg>", svg(figure, text=True), re.DOTALL
    )
    if match is None:
        raise ValueError(f"{name}: matplotlib wrote no SVG with a viewBox")
    width, height, body = float(match[1]), float(match[2]), match[3]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it speaks of *, that is of the whole page
    body = body.replace(INK, "currentColor").replace(MUTED, "var(--muted)")
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", body)  # the reader's own letters, as around it
    body = body.replace("xlink:href", "href")
    body = body.replace(f'id="{PART}', 'data-method="')
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    rem = width / 72 * 7  # an inch is 7, so that letters are nearly the text's
    size = f"max-width: {rem:g}rem; min-width: {0.5 * rem:g}rem"  # smaller cannot be read: its box scrolls
    box = f"0 {top:g} {width:g} {height - top:g}"
    head = f'<svg id="{name}-drawing" viewBox="{box}" style="{size}" role="img" aria-label="{escape(label)}">'
    return f"{head}{body.strip()}{''.join(map(_area, spots))}</svg>"


def _area(spot: Spot) -> str:
    place = f'x="{spot.x:g}" y="{spot.y:g}" width="{spot.width:g}" height="{spot.height:g}"'
    methods = escape(" ".join(spot.methods))
    return f'<rect class="spot" data-methods="{methods}" {place}><title>{escape(spot.text)}</title></rect>'


@dataclass(frozen=True)
class Swatch:
    """An entry of the legend: whose line it is, and how that looks."""

    label: str
    method: str
    picture: Markup


def swatches(comparison: Comparison) -> list[Swatch]:
    """Return an entry per line that has anything to show, and one for the rings where there are some."""
    kind = drawing(comparison).kind if comparison.experiment.drawing else "lines"
    filled = kind in ("bars", "panels")
    found = [
        Swatch(line.label, line.method, _square(line.look) if filled else _line(line.look))
        for line in comparison.lines
        if line.there
    ]
    return [*found, Swatch(RINGS, "", RING)] if _ringed(comparison) else found


def _ringed(comparison: Comparison) -> bool:
    shown = comparison.experiment.drawing
    return shown is not None and shown.kind == "lines" and bool(rings(comparison))


def css_colour(colour: str) -> str:
    """Let what is drawn in ink follow the reader's scheme."""
    return "var(--ink)" if colour == INK else colour


def _square(look: Look) -> Markup:
    shape = Markup('<rect x="2" y="1" width="10" height="10" rx="1.5"/>')
    return _picture(14, look, shape)


def _line(look: Look) -> Markup:
    dashes: Any = look.dashes
    parts = NAMED.get(dashes, ()) if isinstance(dashes, str) else dashes[1]
    pattern = " ".join(f"{1.6 * part:g}" for part in parts) or "none"
    style = MarkerStyle(look.marker)
    outline = style.get_path().transformed(style.get_transform())
    shape = " ".join(_path(np.asarray(polygon)) for polygon in outline.to_polygons(closed_only=False))
    line = Markup('<path d="M1 6H27" fill="none" stroke-width="1.6" stroke-dasharray="{}"/>').format(pattern)
    marker = Markup('<path d="{}" transform="translate(14 6)" stroke-width="1.2"/>').format(shape)
    return _picture(28, look, line + marker)


def _path(points: Array) -> str:
    return "M" + "L".join(f"{2 * SIZE * x:.2f} {-2 * SIZE * y:.2f}" for x, y in points)


def _picture(width: int, look: Look, shapes: Markup) -> Markup:
    colour = css_colour(look.colour)
    head = (
        '<svg class="swatch" width="{0}" height="12" viewBox="0 0 {0} 12" aria-hidden="true" fill="{1}" stroke="{1}">'
    )
    return Markup(head).format(width, colour) + shapes + Markup("</svg>")
