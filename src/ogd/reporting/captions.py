"""What a reader must know to read a table or a figure, beyond its title and what a number is."""

from ogd.reporting.compare import Comparison
from ogd.reporting.heatmaps import lowest

SPLIT = (
    "The paper does not say which classes make up which task, and which pairs are hard decides a cell: compare rows by "
    "their average rather than cell by cell."
)
REMARKS = {
    **dict.fromkeys(("split", "split-2", "split-3", "split-4"), SPLIT),
    "curves": (
        "Three tasks learned one after the other; a dashed line is where the next begins. Lines are means over runs and "
        "bands ± one standard deviation. The axis is truncated, as in the paper. MTL's steps are shared by all tasks seen "
        "so far, so it learns task 3 from a third of its data."
    ),
    "angles": "Bars are means over runs, error bars ± one standard deviation. The axis does not begin at 0.",
    "partitions": (
        "A plot a partition of the digits into two tasks; the paper does not say which five it took. Bars are means over "
        "runs, error bars ± one standard deviation. The axis does not begin at 0."
    ),
    "epochs": "Points are means over runs, error bars ± one standard deviation. The axis of epochs is logarithmic.",
    "lambda": (
        "Points are means over runs, error bars ± one standard deviation. The ringed λ was chosen on validation data, "
        "never on the test data shown here."
    ),
}
TUNED = " EWC's λ is the one chosen on validation data."


def remark(comparison: Comparison) -> str:
    """Return what stands under a table or a figure besides its caption."""
    text = REMARKS.get(comparison.experiment.name, "")
    if comparison.experiment.kind == "figure" and "EWC" in [line.label for line in comparison.lines]:
        text += TUNED
    if comparison.experiment.name == "angles":
        text += _farthest(comparison)
    if comparison.aside:
        text += " The last column is what `ogd bench` measured with 800 directions stored, on one thread."
    return text.strip()


def heat_map(comparison: Comparison) -> str:
    """Return the caption of a heat map."""
    return (
        f"{comparison.experiment.where}, {comparison.experiment.title}: accuracy (%) after each task (down) on every "
        f"task (across), mean over runs; {comparison.experiment.profile}. Colours run from "
        f"{lowest(comparison.found):g} % (dark) to 100 % (bright); tasks not trained yet stand without colour."
    )


def _farthest(comparison: Comparison) -> str:
    """Say what is left at the largest angle, where everything was run."""
    last = {line.label: line.entries[-1].mean for line in comparison.lines if line.entries[-1].runs}
    rivals = [mean for label, mean in last.items() if label != "MTL"]
    if len(last) < len(comparison.lines):
        return ""
    what = f" At {comparison.columns[-1]} the continual methods keep {min(rivals):.0f} to {max(rivals):.0f} %"
    return f"{what}, MTL {last['MTL']:.0f} %."
