"""Which digits? Where the published rows of Tables 3 and 5 to 7 lie among other partitions; from the records alone.

python measurements/paper/digits.py --show   prints it as Markdown

The records are of `ogd reproduce digits digits-fitted --out results`.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from ogd.lab.catalogue import METHODS
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, Experiment
from ogd.lab.experiments.digits import COMPARED, PUBLISHED
from ogd.lab.experiments.runs import find_runs
from ogd.lab.records import Request, RunRecord, find
from ogd.lab.reporting import compare, table
from ogd.lab.reporting.cells import Line
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.formats import counts

RESULTS = Path(__file__).parents[2] / "results"


def show() -> None:
    """Print the spread over drawn partitions, then the fitted partition next to the published cells."""
    drawn = laid_out(EXPERIMENTS["digits"])
    print(f"| | {' | '.join(drawn.columns)} |\n| --- |{' ---: |' * len(drawn.columns)}")
    for method in COMPARED:
        spread(method, [line for line in drawn.lines if line.method == method])
    print()
    fitted = laid_out(judged())
    table(fitted).show(markdown=True)
    print(f"\nAgrees / better / short: {counts(fitted.tally)}, strictly {counts(fitted.tally, strict=True)}.")


def spread(method: str, lines: list[Line]) -> None:
    """Print the least, the median and the most of each column, and how many partitions a published mean exceeds."""
    columns = list(zip(*([entry.mean for entry in line.entries] for line in lines), strict=True))
    label = METHODS[method].label
    shown = (f"{min(column):.1f}, {median(column):.1f}, {max(column):.1f}" for column in columns)
    print(f"| {label}, {len(lines)} partitions: least, median, most | {' | '.join(shown)} |")
    for where, rows in PUBLISHED.items():
        means = [cell.mean for cell in rows[method].published]
        ranks = (
            f"{mean:.1f} (above {sum(ours < mean for ours in column)})"
            for mean, column in zip([*means, fmean(means)], columns, strict=True)
        )
        print(f"| {label}, the paper's {where} | {' | '.join(ranks)} |")


def judged() -> Experiment:
    """Return the fitted partition with the published cells of Table 3, by which it was chosen."""
    fitted, published = EXPERIMENTS["digits-fitted"], PUBLISHED["Table 3"]
    rows = tuple(
        replace(row, label=published[row.method].label, published=published[row.method].published)
        for row in fitted.rows
    )
    return replace(fitted, rows=rows, references=())


def laid_out(experiment: Experiment) -> Comparison:
    """Compare an experiment by the records there are."""

    def runs_of(request: Request, runs: int) -> list[RunRecord]:
        there = find(RESULTS, request)
        return [there[run] for run in range(runs) if run in there]

    return compare(find_runs(experiment, load("mnist"), runs_of))


if __name__ == "__main__":
    show()
