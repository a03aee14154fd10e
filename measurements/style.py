"""How the documents' figures look: white ground, the page's palette, same bytes twice."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ogd.lab.catalogue.methods import BLUE, GREEN, ORANGE, SKY, VERMILION
from ogd.lab.reporting.style import canvas as figure

__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "IMAGES", "ORANGE", "SKY", "VERMILION", "figure", "save"]

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BLACK, GREY = "#000000", "#777777"

mpl.rcParams.update(
    {
        "svg.hashsalt": "ogd",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "mathtext.fontset": "dejavusans",
    }
)


def save(made: Figure, name: str, **options: Any) -> None:
    """Write docs/images/NAME.svg, without a date, so that an unchanged figure is an unchanged file."""
    IMAGES.mkdir(exist_ok=True)
    made.savefig(IMAGES / f"{name}.svg", metadata={"Date": None, "Creator": None}, facecolor="white", **options)
    print(f"docs/images/{name}.svg")
