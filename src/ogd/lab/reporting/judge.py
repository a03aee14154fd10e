"""Ours beside the paper's: a cell agrees, is better, or falls short.

    |d| ≤ 2 √(s²/n + σ²)        d: our mean − the paper's, s: our standard deviation over n runs, σ: the paper's

Our own noise widens it only by the standard error of our mean, s/√n, which more runs make small.
"""

import math
from dataclasses import dataclass

from ogd.lab.experiments.experiment import Cell

ROUNDING = 0.05  # the paper prints one decimal: what is below this it cannot show
SLACK = 1e-9  # a difference of exactly as much agrees, whatever its last bit


@dataclass(frozen=True)
class Mark:
    """A verdict: its name, the sign that stands for it, and the same in words and in LaTeX."""

    name: str
    sign: str
    words: str
    latex: str


AGREES = Mark("agrees", "≈", "agrees with the paper's", r"$\approx$")
BETTER = Mark("better", "▲", "better than the paper's", r"$\triangle$")
SHORT = Mark("short", "▽", "short of the paper's", r"$\nabla$")
MARKS = (AGREES, BETTER, SHORT)
FORMULA, FORMULA_LATEX = "|d| ≤ 2 √(s²/n + σ²)", r"$|d| \le 2\sqrt{s^2/n + \sigma^2}$"
RULE = (
    f"A cell agrees with the paper's when {FORMULA}, where d is the difference of the means, s/√n the standard error "
    "of ours over n runs and σ the published standard deviation; differences below 0.05 agree, because the paper "
    "prints one decimal."
)
EXCEPTIONS = "A single run has no s and is judged by σ alone; the paper's averages have no σ and are not judged."


def judge(mean: float, error: float, published: Cell) -> Mark | None:
    """Return the verdict on a mean in percent with this standard error, NaN where it is not known.

    Examples:
        >>> judge(90.0, 0.5, Cell(92.2, 1.0)).name, judge(90.0, 0.5, Cell(92.3, 1.0)).name
        ('agrees', 'short')
    """
    if math.isnan(mean) or math.isnan(published.std):
        return None
    d = mean - published.mean
    spread = math.hypot(0.0 if math.isnan(error) else error, published.std)
    if abs(d) <= max(2 * spread + SLACK, ROUNDING):
        return AGREES
    return BETTER if d > 0 else SHORT
