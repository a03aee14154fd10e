"""The leaderboards, from the records in results/: what others published, and every row of ours that was measured.

python measurements/leaderboards/leaderboards.py --show   prints the tables as Markdown
"""

import re
from dataclasses import replace
from pathlib import Path

from ogd.lab.experiments.leaderboards import BOARDS
from ogd.lab.reporting.formats import table
from ogd.lab.reporting.report import comparisons
from ogd.lab.reporting.tables import Table

RESULTS = Path(__file__).parents[2] / "results"


def show() -> None:
    """Print a table per leaderboard, best rows first; rows without a record and empty tables are left out."""
    names = [board.name for board in BOARDS]
    for comparison in comparisons(RESULTS):
        lines = tuple(line for line in comparison.lines if line.there or line.quoted)
        if comparison.experiment.name in names and lines:
            shown = best_first(table(replace(comparison, lines=lines)))
            print(replace(shown, caption=f"{comparison.experiment.note} {shown.caption}").markdown(), end="\n\n")


def best_first(shown: Table) -> Table:
    """Return the table with its rows sorted by their first result, ours and published ones together."""

    def result(group: tuple[tuple[str, ...], ...]) -> float:
        number = re.match(r"[\d.]+", group[0][2])
        return float(number[0]) if number else 0.0

    return replace(shown, groups=tuple(sorted(shown.groups, key=result, reverse=True)))


if __name__ == "__main__":
    show()
