"""The legend of a figure on the page: a small picture of each line, which wraps where there is no room."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from ogd.lab.catalogue import Look
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.figures import RINGS, drawing, rings
from ogd.lab.reporting.style import INK
from ogd.lab.reporting.tables import Array

DASHED, DOTTED, MIXED = (3.7, 1.6), (1.0, 1.65), (6.4, 1.6, 1.0, 1.6)  # matplotlib's own, in widths of the line
NAMED = {"--": DASHED, "dashed": DASHED, ":": DOTTED, "dotted": DOTTED, "-.": MIXED, "dashdot": MIXED}
SIZE = 3.0  # of a marker, from its middle
RING = Markup(
    '<svg class="swatch" width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">'
    '<circle cx="6" cy="6" r="5" fill="none" stroke="currentColor"/></svg>'
)


@dataclass(frozen=True)
class Swatch:
    """An entry of the legend: whose line it is, and how that looks."""

    label: str
    method: str
    picture: Markup


def swatches(comparison: Comparison) -> list[Swatch]:
    """Return an entry per line that has anything to show, and one for the rings where there are some."""
    kind = drawing(comparison).kind
    filled = kind in ("bars", "panels")
    found = [
        Swatch(line.label, line.method, _square(line.look) if filled else _line(line.look))
        for line in comparison.lines
        if line.there
    ]
    return [*found, Swatch(RINGS, "", RING)] if kind == "lines" and rings(comparison) else found


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
