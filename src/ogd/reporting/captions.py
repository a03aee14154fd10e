"""What a reader must know to read a table or a figure, beyond its title."""

from ogd.reporting.compare import Comparison
from ogd.reporting.heatmaps import lowest

SPLIT = (
    "The paper does not say which classes make up which task of Split MNIST, and which pairs are hard decides a cell: "
    "compare rows by their average rather than cell by cell."
)
TIMES = "The last column is what `ogd bench` measured with 800 directions stored, on one thread."
BARS = "Bars are means over {runs}, error bars ± one standard deviation; the axis does not begin at 0."
POINTS = "Points are means over {runs}, error bars ± one standard deviation."
FIGURES = {
    "curves": (
        "Accuracy on each of three tasks learned one after the other; a dashed line is where the next begins. Lines "
        "are means over {runs}, bands ± one standard deviation; the axis is truncated, as in the paper. MTL's steps "
        "are shared by all tasks seen so far, so in an epoch it sees a third of task 3's data."
    ),
    "angles": f"Accuracy on the upright digits after the turned ones were learned. {BARS}",
    "partitions": f"A plot a partition of the digits into two tasks; the paper does not say which five it took. {BARS}",
    "epochs": f"Accuracy on task 1 after as many epochs of task 2. {POINTS} The axis of epochs is logarithmic.",
    "lambda": f"{POINTS} The ringed λ was chosen on validation data, never on the test data shown here.",
}


def table(comparison: Comparison) -> str:
    """Return what stands under a table besides its caption, or nothing."""
    if comparison.experiment.title.startswith("Split") and comparison.published:
        return SPLIT
    return TIMES if comparison.aside else ""


def figure(comparison: Comparison) -> str:
    """Return the caption of a figure."""
    text = FIGURES[comparison.experiment.name].format(runs=comparison.runs)
    if any(line.label == "EWC" for line in comparison.lines):
        text += " EWC's λ is the one chosen on validation data."
    if comparison.experiment.name == "angles":
        text += _farthest(comparison)
    profile = comparison.experiment.profile
    return f"{text} {profile[0].upper()}{profile[1:]}."


def heat_map(comparison: Comparison) -> str:
    """Return the caption of a heat map."""
    return (
        f"Accuracy (%) after each task (down) on every task (across), mean over {comparison.runs}; "
        f"{comparison.experiment.profile}. Colours run from {lowest(comparison.found):g}\u00a0% (dark) to 100\u00a0% "
        "(bright); tasks not trained yet stand without colour."
    )


def _farthest(comparison: Comparison) -> str:
    """Say what is left at the largest angle, where everything was run."""
    last = {line.method: line.entries[-1].mean for line in comparison.lines if line.entries[-1].runs}
    if len(last) < len(comparison.lines):
        return ""
    rivals = [mean for method, mean in last.items() if method != "mtl"]
    kept = f"{min(rivals):.0f} to {max(rivals):.0f}\u00a0%"
    return f" At {comparison.columns[-1]} the continual methods keep {kept}, MTL {last['mtl']:.0f}\u00a0%."
