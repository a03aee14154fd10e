"""Which protection keeps how much: the averages of five measurements side by side, from their records.

python measurements/choosing/choosing.py --show   prints them as Markdown
"""

import statistics
from pathlib import Path

from ogd import json_files
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import average_accuracy, find

RESULTS = Path(__file__).parents[2] / "results"
BENCHMARKS = {"permuted": "Permuted", "rotated": "Rotated", "split": "Split"}
# a label, the method in the laboratory's tables, and the way in results/rehearsal.json and results/flights.json
ROWS = (
    ("no protection", "SGD", "plain", "plain"),
    ("projection: `GradientMemory(model)`", "OGD", "gradient", "projection"),
    ("rehearsal: `ExampleMemory(model)`", "DER++", "default", "outputs"),
    ("EWC, λ tuned on validation data", "EWC, tuned λ", "", ""),
    ("A-GEM", "A-GEM", "", ""),
    ("all data kept", "MTL", "", "all"),
)


def show() -> None:
    """Print a line per way of training."""
    dataset = load("mnist")
    rehearsed = json_files.load(RESULTS / "rehearsal.json")["models"]
    flown = json_files.load(RESULTS / "flights.json")["runs"]["flights"]
    print(f"| | {' | '.join(BENCHMARKS.values())} | CNN, digits | transformer, texts | flights (AUC) | month to come |")
    print(f"| --- |{' ---: |' * (len(BENCHMARKS) + 4)}")
    for label, row, way, flight in ROWS:
        cells = []
        for name in BENCHMARKS:
            asked = [one for one in EXPERIMENTS[name].rows if one.label == row]
            cells.append(_lab(requests_of(asked[0], dataset, 0)[0]) if asked else "–")
        for model in ("cnn", "transformer"):
            runs = rehearsed[model].get(way, [])
            cells.append(_number([100 * statistics.mean(run["accuracies"]) for run in runs], ".1f"))
        auc = [run["auc"] for run in flown.get(flight, [])]
        cells.append(_number([statistics.mean(run[11]) for run in auc], ".3f"))
        cells.append(_number([statistics.mean(run[t][t + 1] for t in range(11)) for run in auc], ".3f"))
        print(f"| {label} | {' | '.join(cells)} |")


def _lab(request: object) -> str:
    found = find(RESULTS, request)
    return _number([100 * float(average_accuracy(record.accuracy)) for record in found.values()], ".1f")


def _number(values: list[float], form: str) -> str:
    return f"{statistics.mean(values):{form}}" if values else "–"


if __name__ == "__main__":
    show()
