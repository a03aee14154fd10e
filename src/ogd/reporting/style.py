"""How figures look: one colour, marker and dash a method throughout; Okabe and Ito's palette; same bytes twice."""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from matplotlib import style as styles
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

INK, MUTED = "#1a1a1a", "#757575"  # the page gives these two its own colours
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"


@dataclass(frozen=True)
class Look:
    """A method's colour, and its marker and dashes for who cannot tell the colours apart."""

    colour: str
    marker: str
    dashes: Any


LOOKS = {
    "mtl": Look(PURPLE, "s", (0, (1, 1))),
    "ogd": Look(BLUE, "o", "-"),
    "agem": Look(ORANGE, "^", (0, (5, 1))),
    "ewc": Look(GREEN, "D", (0, (3, 1, 1, 1))),
    "sgd": Look(VERMILION, "v", (0, (3, 1.5))),
}
STYLE = {
    "svg.hashsalt": "ogd",
    "pdf.fonttype": 42,  # text stays text
    "font.size": 9.5,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.35,
    "grid.color": MUTED,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "mathtext.fontset": "dejavusans",
    **dict.fromkeys(
        ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"], INK
    ),
}


def styled(**more: str) -> AbstractContextManager[None]:
    """Return a context to draw and to save in; a user's own matplotlibrc changes nothing."""
    return styles.context(["default", {**STYLE, **more}])


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    made = Figure((width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def legend(figure: Figure, methods: Sequence[tuple[str, str]], *, filled: bool = False) -> None:
    """Name the methods, (method, label), in one line above all panels; `filled` for bars."""
    handles = []
    for method, label in methods:
        look = LOOKS[method]
        dashes = "none" if filled else look.dashes
        marker, size = ("s", 8.0) if filled else (look.marker, 4.5)
        handles.append(Line2D([], [], color=look.colour, ls=dashes, marker=marker, ms=size, label=label))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handlelength=2.6, columnspacing=1.8)


def grid(axes: Axes) -> None:
    """Rule the accuracies, at whole percents."""
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y")
    axes.tick_params(length=3, width=0.7)


def settle(figure: Figure) -> Figure:
    """Lay a finished figure out once for all; each format would do it again, which takes longer than drawing."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def svg(figure: Figure, *, text: bool = False) -> str:
    """Return a figure as SVG without a date, its letters as outlines, which look alike everywhere, or as text."""
    out = io.StringIO()
    with styled(**{"svg.fonttype": "none" if text else "path"}):
        ground = "none" if text else "white"
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, facecolor=ground)
    return out.getvalue()


def pdf(figure: Figure) -> bytes:
    """Return a figure as PDF without a date."""
    out = io.BytesIO()
    with styled():
        nothing = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(out, format="pdf", metadata=nothing, facecolor="white")
    return out.getvalue()
