"""How long every recorded experiment took, by the times in its records.

python measurements/paper/experiment_times.py --show   prints them as Markdown
"""

from pathlib import Path

from ogd.lab.progress import clock
from ogd.lab.reporting.page import seconds
from ogd.lab.reporting.report import comparisons

RESULTS = Path(__file__).parents[2] / "results"


def show() -> None:
    """Print a line per experiment, and one for all of them, where what several share counts once."""
    found = comparisons(RESULTS)
    print("| experiment | runs | time on one core |\n| --- | ---: | ---: |")
    for one in found:
        if one.found.share:
            time = clock(seconds(one.found.records()))
            print(f"| {one.experiment.where}, {one.experiment.name} | {one.runs.split(' run')[0]} | {time} |")
    records = [record for one in found for record in one.found.records()]
    print(f"| all, what they share once | | {clock(seconds(records))} |")


if __name__ == "__main__":
    show()
