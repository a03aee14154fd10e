"""What a reader must know to read a table or a figure, beyond its title."""

from ogd.lab.catalogue import METHODS
from ogd.lab.reporting.accuracy_plots import lowest_colour
from ogd.lab.reporting.compare import Comparison

TIMES = "The last column is the measured time, on one thread."
BARS = "Bars are means over {runs}, error bars ± one standard deviation; the axis does not begin at 0."
READING = {
    "bars": BARS,
    "panels": BARS,
    "lines": "Points are means over {runs}, error bars ± one standard deviation.",
    "curves": (
        "A dashed line is where the next task begins. Lines are means over {runs}, bands ± one standard deviation; the "
        "axis of accuracies is truncated."
    ),
}  # by kind of drawing


def table(comparison: Comparison) -> str:
    """Return what stands under a table besides its caption, or nothing."""
    return " ".join(filter(None, [comparison.experiment.note, TIMES if comparison.aside else "", comparison.dead_note]))


def figure(comparison: Comparison) -> str:
    """Return the caption of a figure."""
    drawing, profile = comparison.experiment.drawing, comparison.experiment.profile
    assert drawing is not None
    parts = [
        comparison.experiment.note,
        READING[drawing.kind].format(runs=comparison.runs),
        "The horizontal axis is logarithmic." if drawing.log else "",
        _farthest(comparison) if drawing.kind == "bars" and drawing.over else "",
        f"{profile[0].upper()}{profile[1:]}.",
        comparison.dead_note,
    ]
    return " ".join(filter(None, parts))


def heat_map(comparison: Comparison) -> str:
    """Return the caption of a heat map."""
    return (
        f"Accuracy (%) after each task (down) on every task (across), mean over {comparison.runs}; "
        f"{comparison.experiment.profile}. Colours run from {lowest_colour(comparison.found):g}\u00a0% (dark) to "
        "100\u00a0% (bright); tasks not trained yet stand without colour."
    )


def _farthest(comparison: Comparison) -> str:
    """Say what is left in the last column, where everything was run and there is an upper bound to compare with."""
    last = [(line, line.entries[-1]) for line in comparison.lines if not line.entries[-1].all_dead]
    bounds = [(line.label, entry.mean) for line, entry in last if METHODS[line.method].bound]
    rivals = [entry.mean for line, entry in last if not METHODS[line.method].bound]
    if not bounds or not rivals or not all(entry.runs for _, entry in last):
        return ""
    kept = f"{min(rivals):.0f} to {max(rivals):.0f}\u00a0%"
    above = ", ".join(f"{label} {mean:.0f}\u00a0%" for label, mean in bounds)
    return f"At {comparison.columns[-1]} the continual methods keep {kept}, {above}."
