"""How the documents' figures look: white ground, the colour-blind safe palette of Okabe and Ito, same bytes twice."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "images"
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, GREY = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#777777",
)  # fmt: skip

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


def figure(width: float, height: float) -> Figure:
    made = Figure((width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(made: Figure, name: str, **options: Any) -> None:
    """Write docs/images/NAME.svg, without a date, so that an unchanged figure is an unchanged file."""
    IMAGES.mkdir(exist_ok=True)
    made.savefig(IMAGES / f"{name}.svg", metadata={"Date": None, "Creator": None}, facecolor="white", **options)
    print(f"docs/images/{name}.svg")
