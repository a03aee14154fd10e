"""How far the records agree with the published tables, and what they cost; from the records alone.

python docs/figures/agreement.py --show      prints both as Markdown
"""

from pathlib import Path

from ogd.progress import clock
from ogd.reporting import cost
from ogd.reporting.page import scores
from ogd.reporting.report import comparisons
from ogd.reporting.tables import mean_std, signed

RESULTS = Path(__file__).parents[2] / "results"


def show() -> None:
    """Print a line a published table, and then the time that every experiment took."""
    found = comparisons(RESULTS)
    print("| table | within 2 std | better | short | not run | OGD's average | the paper's | difference |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for score in scores(found):
        where = f"{score.comparison.experiment.where}, {score.comparison.experiment.name}"
        counts = " | ".join(str(score.counts[name]) for name in ("within", "better", "short"))
        ogd = score.average
        average = ["", "", ""]
        if ogd is not None and ogd.published is not None:
            average = [mean_std(ogd.runs), f"{ogd.published.mean:.1f}", signed(ogd.difference)]
        print(f"| {where} | {counts} | {score.missing} | {' | '.join(average)} |")
    print("\n| experiment | runs | time on one core |\n| --- | ---: | ---: |")
    records = [record for one in found for record in one.found.records()]
    for one in found:
        if one.found.share:
            time = clock(cost.seconds(one.found.records()))
            print(f"| {one.experiment.where}, {one.experiment.name} | {one.experiment.runs} | {time} |")
    print(f"| all, what they share once | | {clock(cost.seconds(records))} |")


if __name__ == "__main__":
    show()
