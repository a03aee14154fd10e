"""Ours beside the paper's: within two standard deviations, better, or short."""

import math
from dataclasses import dataclass

from ogd.experiments.experiment import Cell

ROUNDING = 0.05  # the paper prints one decimal: what is below this it cannot show
SLACK = 1e-9  # a difference of exactly two standard deviations is within them, whatever its last bit


@dataclass(frozen=True)
class Mark:
    """A verdict: its name, the sign that stands for it, and the same in words and in LaTeX."""

    name: str
    sign: str
    words: str
    latex: str


WITHIN = Mark("within", "≈", "within two standard deviations of the paper's", r"$\approx$")
BETTER = Mark("better", "▲", "better than the paper's by more than two standard deviations", r"$\triangle$")
SHORT = Mark("short", "▽", "short of the paper's by more than two standard deviations", r"$\nabla$")
MARKS = (WITHIN, BETTER, SHORT)
DEFINITION = (
    "Two standard deviations are twice the larger of ours and the paper's; a difference below 0.05, which the paper's "
    "one decimal hides, is within them. A single run has no standard deviation, and the paper's averages have none: "
    "the first is judged by the paper's alone, the second not at all."
)


def judge(mean: float, std: float, published: Cell) -> Mark | None:
    """Return the verdict on a mean in percent; a standard deviation that is not known is NaN.

    Examples:
        >>> judge(90.0, 0.5, Cell(91.9, 1.0)).name, judge(90.0, 0.5, Cell(92.1, 1.0)).name
        ('within', 'short')
    """
    known = [value for value in (std, published.std) if not math.isnan(value)]
    if math.isnan(mean) or math.isnan(published.std):
        return None
    difference = mean - published.mean
    if abs(difference) <= max(2 * max(known) + SLACK, ROUNDING):
        return WITHIN
    return BETTER if difference > 0 else SHORT
