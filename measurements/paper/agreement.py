"""How far the records agree with the published tables; from the records alone.

python measurements/paper/agreement.py --show   prints it as Markdown
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ogd.lab.reporting import formats
from ogd.lab.reporting.cells import FORMULA, MARKS, ROUNDING, SLACK, STRICT, Entry
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.page import scores
from ogd.lab.reporting.report import comparisons
from ogd.lab.reporting.tables import mean_std, signed

RESULTS = Path(__file__).parents[2] / "results"
NAMES = tuple(mark.name for mark in MARKS)


def show() -> None:
    """Print a line per published table, and all cells by each rule."""
    found = comparisons(RESULTS)
    tables(found)
    rules(found)


def tables(found: list[Comparison]) -> None:
    """Print how the cells of every published table came out, and the average of the row it is about."""
    print("| table | agrees | better | short | not run | strictly | OGD's average | the paper's | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for score in scores(found):
        where = f"{score.comparison.experiment.where}, {score.comparison.experiment.name}"
        counts = " | ".join(str(score.tally.counts[name]) for name in NAMES)
        ogd = score.average
        average = ["", "", ""]
        if ogd is not None and ogd.published is not None:
            average = [mean_std(ogd.runs), f"{ogd.published.mean:.1f}", signed(ogd.difference)]
        strictly = formats.counts(score.tally, strict=True)
        print(f"| {where} | {counts} | {score.tally.missing} | {strictly} | {' | '.join(average)} |")


def rules(found: list[Comparison]) -> None:
    """Print the verdicts on all published cells by today's rule, by the strict one and by the one before."""
    entries = [entry for score in scores(found) for entry in score.tally.cells if entry.runs]
    print("\n| all tables, where agreement is at most | agrees | better | short |\n| --- | ---: | ---: | ---: |")
    _counts(f"{_most(FORMULA)}, the rule of this page", (entry.mark.name for entry in entries if entry.mark))
    _counts(f"{_most(STRICT)}, the strict count", (entry.strict_mark.name for entry in entries if entry.strict_mark))
    _counts("2 max(s, σ), the rule before", map(former, entries))


def former(entry: Entry) -> str:
    """Judge by the larger of the two standard deviations: our own noise made agreement easier."""
    assert entry.published is not None
    d, s = entry.difference, 0.0 if math.isnan(entry.std) else entry.std
    if abs(d) <= max(2 * max(s, entry.published.std) + SLACK, ROUNDING):
        return "agrees"
    return "better" if d > 0 else "short"


def _most(formula: str) -> str:
    return formula.partition(" ≤ ")[2]


def _counts(rule: str, verdicts: Iterable[str]) -> None:
    counts = Counter(verdicts)
    print(f"| {rule} | {' | '.join(str(counts[name]) for name in NAMES)} |")


if __name__ == "__main__":
    show()
