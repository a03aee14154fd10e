"""The leaderboards, from the records in results/: what others published, and every row of ours that was measured.

python measurements/leaderboards/leaderboards.py --show   prints the tables as Markdown
"""

from dataclasses import replace
from pathlib import Path

from ogd.lab.experiments.leaderboards import BOARDS
from ogd.lab.reporting.formats import table
from ogd.lab.reporting.report import comparisons

RESULTS = Path(__file__).parents[2] / "results"


def show() -> None:
    """Print a table per leaderboard; a row without a record is left out, and so is a table without rows."""
    names = [board.name for board in BOARDS]
    for comparison in comparisons(RESULTS):
        lines = tuple(line for line in comparison.lines if line.there or line.quoted)
        if comparison.experiment.name in names and lines:
            shown = table(replace(comparison, lines=lines))
            print(replace(shown, caption=f"{comparison.experiment.note} {shown.caption}").markdown(), end="\n\n")


if __name__ == "__main__":
    show()
