"""What stands in a table: a cell of ours beside the paper's, published cells counted, and lines of either."""

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean, stdev

from ogd.lab.catalogue import Look
from ogd.lab.experiments.experiment import Cell
from ogd.lab.reporting.judge import Mark, judge

UNSEEN = Look("none")  # of a line that belongs to no method


@dataclass(frozen=True)
class Entry:
    """A cell: the runs found, in percent, of so many wanted, and what was published."""

    runs: tuple[float, ...]
    wanted: int
    published: Cell | None = None
    digits: int = 1

    @property
    def mean(self) -> float:
        return fmean(self.runs) if self.runs else math.nan

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
        return judge(self.mean, self.error, self.published) if self.published else None


@dataclass(frozen=True)
class Tally:
    """Published cells, counted."""

    cells: tuple[Entry, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many came out how, by the mark's name."""
        return Counter(cell.mark.name for cell in self.cells if cell.mark)

    @property
    def missing(self) -> int:
        """How many were not run."""
        return sum(not cell.runs for cell in self.cells)

    @property
    def few(self) -> int:
        """How many have fewer runs than asked for, but some."""
        return sum(0 < len(cell.runs) < cell.wanted for cell in self.cells)

    @property
    def distance(self) -> float:
        """The mean of |ours − the paper's| over the cells that were run."""
        apart = [abs(cell.difference) for cell in self.cells if cell.runs]
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
