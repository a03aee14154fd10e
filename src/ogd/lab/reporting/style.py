"""How figures look: each method as the catalogue has it, on a quiet ground; the same bytes twice."""

import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager

from matplotlib import style as styles
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ogd.lab.reporting.cells import Line

INK, MUTED = "#1a1a1a", "#757575"  # the page gives these two its own colours
PART = "of:"  # and a method's name: the gid of what is drawn for it, which the page can hide
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


def legend(figure: Figure, lines: Sequence[Line], *more: Line2D, filled: bool = False) -> None:
    """Name the lines that have anything to show above all panels, then what `more` stands for; `filled` for bars."""
    handles = []
    for line in [line for line in lines if line.there]:
        dashes = "none" if filled else line.look.dashes
        marker, size = ("s", 8.0) if filled else (line.look.marker, 4.5)
        handles.append(Line2D([], [], color=line.look.colour, ls=dashes, marker=marker, ms=size, label=line.label))
    handles += more
    longest = max(len(str(handle.get_label())) for handle in handles)
    beside = max(1, int(figure.get_figwidth() / (0.65 + 0.075 * longest)))  # inches: a sample, and a letter
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(beside, len(handles)), handlelength=2.6,
        columnspacing=1.8,
    )  # fmt: skip


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
    return out.getvalue() if text else re.sub(rf' id="{PART}[^"]*"', "", out.getvalue())


def pdf(figure: Figure) -> bytes:
    """Return a figure as PDF without a date."""
    out = io.BytesIO()
    with styled():
        nothing = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(out, format="pdf", metadata=nothing, facecolor="white")
    return out.getvalue()
