"""How figures look: each method as the catalogue has it, on a quiet ground; the same bytes twice."""

import io
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager

from matplotlib import style as styles
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ogd.lab.catalogue.looks import INK, MUTED
from ogd.lab.reporting.cells import Line

GROUND = "#ffffff"
DARK = {INK: "#dde2e7", MUTED: "#97a1ab", GROUND: "#1e2129"}  # of a reader with a dark scheme
WIDTH = 5.6  # inches; at 390 pixels, the width of a telephone, letters are then 8 pixels high
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
    columns = _columns([0.65 + 0.075 * len(str(handle.get_label())) for handle in handles], figure.get_figwidth())
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=2.6, columnspacing=1.8)


def _columns(widths: Sequence[float], whole: float) -> int:
    """Return into how many columns entries of these widths fit, one below the other in each."""
    for count in range(len(widths), 1, -1):
        rows = math.ceil(len(widths) / count)
        if sum(max(widths[start : start + rows]) for start in range(0, len(widths), rows)) <= whole:
            return count
    return 1


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
    """Return a figure as SVG without a date. Its letters are text without a ground, for the page, or else outlines on
    a ground that follows the reader's scheme: they look alike everywhere."""
    out = io.StringIO()
    with styled(**{"svg.fonttype": "none" if text else "path"}):
        ground = "none" if text else GROUND
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, facecolor=ground)
    if text:
        return out.getvalue()
    return re.sub(rf' id="{PART}[^"]*"', "", out.getvalue()).replace("</style>", f"{dark_scheme()}</style>", 1)


def dark_scheme() -> str:
    """Return the rules that give ink and ground a dark scheme's colours, which programs without CSS ignore."""
    rules = [f"#patch_1 path{{fill:{DARK[GROUND]}!important}}"]
    rules += [f'[style*="stroke: {GROUND}"]{{stroke:{DARK[GROUND]}!important}}']
    for colour in (INK, MUTED):
        rules += [f'[style*="{part}: {colour}"]{{{part}:{DARK[colour]}!important}}' for part in ("fill", "stroke")]
    return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"


def pdf(figure: Figure) -> bytes:
    """Return a figure as PDF without a date."""
    out = io.BytesIO()
    with styled():
        nothing = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(out, format="pdf", metadata=nothing, facecolor="white")
    return out.getvalue()
