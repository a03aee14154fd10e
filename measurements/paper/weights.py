"""What the initial weights change: the published tables with each kind, counted; from the records alone.

python measurements/paper/weights.py --show   prints it as Markdown, also while `ogd reproduce init` is not finished
"""

from pathlib import Path

from ogd.lab.reporting import table
from ogd.lab.reporting.report import comparisons

RESULTS = Path(__file__).parents[2] / "results"


def show() -> None:
    """Print the `init` table."""
    (found,) = (one for one in comparisons(RESULTS) if one.experiment.name == "init")
    table(found).show(markdown=True)


if __name__ == "__main__":
    show()
