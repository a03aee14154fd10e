"""The cells of a table: ours next to the paper's, and whether the two agree.

    |d| ≤ 2 √(s²/n + σ²)        d: our mean − the paper's, s: our standard deviation over n runs, σ: the paper's
    |d| ≤ 2 √(s²/n + σ²/m)      the strict count: σ over m runs is divided by √m as well

Our own noise widens the interval only by the standard error of our mean, s/√n, which shrinks with more runs.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from ogd.lab.catalogue import Look
from ogd.lab.experiments.experiment import Cell

UNSEEN = Look("none")  # of a line that belongs to no method
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
STRICT, STRICT_LATEX = "|d| ≤ 2 √(s²/n + σ²/m)", r"$|d| \le 2\sqrt{s^2/n + \sigma^2/m}$"
RULE = (
    f"A cell agrees with the paper's when {FORMULA}, where d is the difference of the means, s/√n the standard error "
    "of ours over n runs and σ the published standard deviation; differences below 0.05 agree, because the paper "
    "prints one decimal. This asks whether our mean could be that of one of the paper's runs. The strict count, "
    f"{STRICT} with the paper's m runs, asks whether the two means can be of the same accuracy."
)
EXCEPTIONS = (
    "Marks are by the first rule. A single run has no s and is judged by σ alone; the paper's averages have no σ and "
    "are not judged."
)


def judge(mean: float, error: float, published: Cell, strict: bool = False) -> Mark | None:
    """Return the verdict on a mean in percent with this standard error, NaN where it is not known.

    Where `strict`, the standard error of the published mean takes the place of its standard deviation.

    Examples:
        >>> judge(90.0, 0.5, Cell(92.2, 1.0)).name, judge(90.0, 0.5, Cell(92.3, 1.0)).name
        ('agrees', 'short')
        >>> judge(90.0, 0.5, Cell(92.2, 1.0, runs=5), strict=True).name
        'short'
    """
    if math.isnan(mean) or math.isnan(published.std):
        return None
    d = mean - published.mean
    spread = math.hypot(0.0 if math.isnan(error) else error, published.error if strict else published.std)
    if abs(d) <= max(2 * spread + SLACK, ROUNDING):
        return AGREES
    return BETTER if d > 0 else SHORT


@dataclass(frozen=True)
class Entry:
    """A cell: the runs found, in percent, of so many wanted, and what was published."""

    runs: tuple[float, ...]
    wanted: int
    published: Cell | None = None
    digits: int = 1
    dead: int = 0  # of the runs found

    @property
    def all_dead(self) -> bool:
        return 0 < len(self.runs) == self.dead

    @property
    def mean(self) -> float:
        """The mean over the runs, dead ones included; NaN where there is no run or none that lives."""
        return fmean(self.runs) if self.dead < len(self.runs) else math.nan

    @property
    def std(self) -> float:
        """The sample standard deviation; NaN where there are not two runs."""
        return stdev(self.runs) if len(self.runs) > 1 else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / math.sqrt(len(self.runs)) if self.runs else math.nan

    @property
    def difference(self) -> float:
        return self.mean - self.published.mean if self.published else math.nan

    @property
    def mark(self) -> Mark | None:
        if self.published and self.all_dead:
            return None if math.isnan(self.published.std) else SHORT
        return judge(self.mean, self.error, self.published) if self.published else None

    @property
    def strict_mark(self) -> Mark | None:
        return judge(self.mean, self.error, self.published, strict=True) if self.published else None


@dataclass(frozen=True)
class Tally:
    """Published cells, counted."""

    cells: tuple[Entry, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many came out how, by the mark's name."""
        return Counter(cell.mark.name for cell in self.cells if cell.mark)

    @property
    def strict_counts(self) -> Counter[str]:
        """The same, judged strictly."""
        return Counter(cell.strict_mark.name for cell in self.cells if cell.strict_mark)

    @property
    def missing(self) -> int:
        """How many were not run."""
        return sum(not cell.runs for cell in self.cells)

    @property
    def none_run(self) -> "Tally":
        """The same cells, as if none had been run."""
        return Tally(tuple(replace(cell, runs=(), dead=0) for cell in self.cells))

    @property
    def few(self) -> int:
        """How many have fewer runs than asked for, but some."""
        return sum(0 < len(cell.runs) < cell.wanted for cell in self.cells)

    @property
    def dead(self) -> int:
        """How many have dead runs."""
        return sum(cell.dead > 0 for cell in self.cells)

    @property
    def distance(self) -> float:
        """The mean of |ours − the paper's| over the cells that have a mean."""
        apart = [abs(cell.difference) for cell in self.cells if cell.runs and not cell.all_dead]
        return fmean(apart) if apart else math.nan


@dataclass(frozen=True)
class Line:
    """A row as cells, as tallies, or as what others published; `aside` stands in a last column of its own."""

    label: str
    entries: tuple[Entry, ...] = ()
    tallies: tuple[Tally, ...] = ()
    method: str = ""
    look: Look = UNSEEN
    subject: bool = False
    alone: bool = False  # ours only, beside published ones
    aside: str = ""
    quoted: tuple[str, ...] = ()  # as they were printed

    @property
    def there(self) -> bool:
        """Whether any of its runs is there."""
        return any(entry.runs for entry in self.entries)

    @property
    def published(self) -> bool:
        return any(entry.published for entry in self.entries)
