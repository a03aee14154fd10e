"""A figure → a part of the page: its ink follows the scheme, it scales, and it tells its values."""

import re
from collections.abc import Iterable
from html import escape

from matplotlib.figure import Figure

from ogd.checks import ArgumentError
from ogd.lab.reporting.hover import Spot
from ogd.lab.reporting.style import INK, MUTED, PART, svg


def inline(figure: Figure, name: str, label: str, spots: Iterable[Spot] = ()) -> str:
    """Return SVG with text for an HTML page that may hold others like it. The page has a legend of its own."""
    top = 0.0
    for legend in figure.legends:
        top = (figure.bbox.height - legend.get_window_extent().y0) * 72 / figure.dpi
        legend.set_visible(False)
    match = re.search(
        r"<svg [^>]*?viewBox=\"0 0 ([\d.]+) ([\d.]+)\"[^>]*>(.*)</svg>", svg(figure, text=True), re.DOTALL
    )
    if match is None:
        raise ArgumentError(name, "matplotlib wrote no SVG with a viewBox")
    width, height, body = float(match[1]), float(match[2]), match[3]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it speaks of *, that is of the whole page
    body = body.replace(INK, "currentColor").replace(MUTED, "var(--muted)")
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", body)  # the reader's own letters, as around it
    body = body.replace("xlink:href", "href")
    body = body.replace(f'id="{PART}', 'data-method="')
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    rem = width / 72 * 6  # an inch is 6, so that letters are nearly the text's
    size = f"max-width: {rem:g}rem; min-width: {0.7 * rem:g}rem"  # smaller cannot be read: its box scrolls
    box = f"0 {top:g} {width:g} {height - top:g}"
    head = f'<svg viewBox="{box}" style="{size}" role="img" aria-label="{escape(label)}">'
    return f"{head}{body.strip()}{''.join(map(_area, spots))}</svg>"


def _area(spot: Spot) -> str:
    place = f'x="{spot.x:g}" y="{spot.y:g}" width="{spot.width:g}" height="{spot.height:g}"'
    return f'<rect class="spot" {place}><title>{escape(spot.text)}</title></rect>'
