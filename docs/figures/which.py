"""What each way of protection keeps, over all that was measured; from the records alone.

python docs/figures/which.py --show      prints it as Markdown
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from ogd import json_files
from ogd.records import average_accuracy, read
from ogd.reporting.report import comparisons

RESULTS = Path(__file__).parents[2] / "results"
WAYS = ("none", "EWC, tuned", "stored gradients", "A-GEM", "replay", "rehearsal", "all data")
LABORATORY = dict(zip(("sgd", "ewc", "ogd", "agem", "er", "der", "mtl"), WAYS, strict=True))
OWN_LOOP = {"plain": "none", "projection": "stored gradients", "replay": "replay", "default": "rehearsal"}
FLIGHTS = {
    "plain": "none",
    "projection": "stored gradients",
    "replay": "replay",
    "outputs": "rehearsal",
    "all": "all data",
}
Means = dict[str, float]


def laboratory() -> Iterator[tuple[str, Means]]:
    """The averages over the tasks of Tables 1 to 3, after the last."""
    for comparison in comparisons(RESULTS):
        if comparison.experiment.name in ("rotated", "permuted", "split"):
            means: Means = {}
            for row, line in zip(comparison.experiment.rows, comparison.lines, strict=True):
                if row.label != "EWC, λ = 1":
                    means[LABORATORY[row.method]] = line.entries[-1].mean
            yield f"{comparison.experiment.name.capitalize()} MNIST, 5 tasks", means


def colour_images() -> Iterator[tuple[str, Means]]:
    means: Means = {}
    for method, way in LABORATORY.items():
        runs = [read(path) for path in RESULTS.glob(f"split-{method}-*/run-*.json")]
        averages = [float(average_accuracy(run.accuracy)) for run in runs if run.request.data == "cifar10"]
        if averages:
            means[way] = 100 * fmean(averages)
    yield "Split CIFAR-10, a CNN, own heads", means


def own_loops() -> Iterator[tuple[str, Means]]:
    """Three tasks in a user's loop with Adam."""
    for name, runs in json_files.load(RESULTS / "rehearsal.json")["models"].items():
        means = {w: 100 * fmean(fmean(run["accuracies"]) for run in runs[key]) for key, w in OWN_LOOP.items()}
        yield {"cnn": "turned digits, a CNN, Adam", "transformer": "texts, a transformer, Adam"}[name], means


def flights() -> Iterator[tuple[str, Means]]:
    found = json_files.load(RESULTS / "flights.json")["runs"]["flights"]
    means = {w: 100 * fmean(fmean(run["auc"][-1]) for run in found[key]) for key, w in FLIGHTS.items()}
    yield "flights, 12 months, AUC × 100", means


def show() -> None:
    """Print a line per benchmark."""
    print(f"| average after the last task | {' | '.join(WAYS)} |")
    print(f"| --- |{' ---: |' * len(WAYS)}")
    for part in (laboratory, colour_images, own_loops, flights):
        for label, means in part():
            cells = [f"{means[way]:.1f}" if way in means else "" for way in WAYS]
            print(f"| {label} | {' | '.join(cells)} |")


if __name__ == "__main__":
    show()
