"""How the documents' figures look: as those of `ogd report`, each method as `ogd.lab.catalogue.looks` has it."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from ogd.files import write_text
from ogd.lab.catalogue import looks
from ogd.lab.reporting.style import GROUND, STYLE, WIDTH, svg
from ogd.lab.reporting.style import canvas as figure

__all__ = ["GROUND", "IMAGES", "WIDTH", "figure", "looks", "save"]

IMAGES = Path(__file__).parents[1] / "docs" / "images"

mpl.rcParams.update(STYLE)


def save(made: Figure, name: str) -> None:
    """Write docs/images/NAME.svg, without a date, so that an unchanged figure is an unchanged file."""
    write_text(IMAGES / f"{name}.svg", svg(made))
    print(f"docs/images/{name}.svg")
