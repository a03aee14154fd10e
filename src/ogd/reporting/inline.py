"""A figure's SVG → a part of the page: its ink follows the scheme, it scales, and its ids are its own."""

import re
from html import escape

from ogd.reporting.style import INK, MUTED


def inline(svg: str, name: str, label: str) -> str:
    """Return SVG with text (`style.svg(…, text=True)`) for an HTML page that may hold others like it."""
    match = re.search(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>(.*)</svg>', svg, re.DOTALL)
    if match is None:
        raise ValueError(f"{name}: matplotlib wrote no SVG with a viewBox")
    box, body = match.groups()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it speaks of *, that is of the whole page
    body = body.replace(INK, "currentColor").replace(MUTED, "var(--muted)")
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", body)  # the reader's own letters, as around it
    body = body.replace("xlink:href", "href")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    width = float(box.split()[2]) / 72 * 6  # rem: an inch is 6, so that letters are nearly the text's
    size = f"max-width: {width:g}rem; min-width: {0.7 * width:g}rem"  # smaller cannot be read: its box scrolls
    head = f'<svg viewBox="{box}" style="{size}" role="img" aria-label="{escape(label)}">'
    return f"{head}{body.strip()}</svg>"
