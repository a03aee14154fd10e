"""Which protection keeps how much: the averages of several measurements side by side, from their records.

    python measurements/choosing/choosing.py --show   prints them as Markdown

A row named by a call is of loops that make exactly this call: own_loop.py beside this file, for the first four columns,
measurements/rehearsal/rehearsal.py and measurements/real_data/flights.py. What else is in the first four columns is the
laboratory's (`ogd reproduce worlds --out results --data data/fashion`).
"""

import statistics
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import average_accuracy, find

RESULTS = Path(__file__).parents[2] / "results"
BENCHMARKS = ("Permuted", "Rotated", "Split", "Split, one softmax")  # columns of `worlds`
# a label, its row in `worlds` if it has one, and its name in the records of the loops
ROWS = (
    ("no protection", "SGD", "plain"),
    ("rehearsal: `ExampleMemory(model)`", "", "default"),
    ("projection: `GradientMemory(model)`", "", "gradient"),
    ("projection, the paper's: `per_task=200`, `every=1`", "", "paper"),
    ("ER by hand", "ER", "er"),
    ("DER++ by hand", "DER++", "der"),
    ("EWC, λ tuned on validation data", "EWC, tuned λ", "ewc"),
    ("A-GEM", "A-GEM", "agem"),
    ("all data kept", "MTL", "all"),
)


def show() -> None:
    """Print a line per way of training; a dash where there is no record."""
    rehearsed = _runs("rehearsal.json", "models")
    flown = _runs("flights.json", "runs").get("flights", {})
    digits, own = averages(), _runs("own_loop.json", "runs")
    print(f"| | {' | '.join(BENCHMARKS)} | CNN, digits | transformer, texts | flights (AUC) | month to come |")
    print(f"| --- |{' ---: |' * (len(BENCHMARKS) + 4)}")
    for label, row, way in ROWS:
        cells = []
        for name in BENCHMARKS:
            runs = _listed(own.get(name, {}).get(way, {}))
            ours = [100 * statistics.mean(run["accuracy"][-1]) for run in runs]
            cells.append(_number(digits.get((row, name), ours), ".1f"))
        for model in ("cnn", "transformer"):
            runs = rehearsed.get(model, {}).get(way, [])
            cells.append(_number([100 * statistics.mean(run["accuracies"]) for run in _listed(runs)], ".1f"))
        auc = [run["auc"] for run in _listed(flown.get(way, []))]
        cells.append(_number([statistics.mean(run[11]) for run in auc], ".3f"))
        cells.append(_number([statistics.mean(run[t][t + 1] for t in range(11)) for run in auc], ".3f"))
        print(f"| {label} | {' | '.join(cells)} |")


def averages() -> dict[tuple[str, str], list[float]]:
    """Return the average accuracies (%) of the runs of each row and column of `worlds`."""
    experiment, dataset = EXPERIMENTS["worlds"], load("mnist")
    found = {}
    for row in experiment.rows:
        for column, request in zip(experiment.columns, requests_of(row, dataset), strict=True):
            records = find(RESULTS, request)
            runs = [records[run] for run in range(experiment.runs) if run in records]
            found[row.label, column] = [100 * float(average_accuracy(run.accuracy)) for run in runs]
    return found


def _runs(name: str, part: str) -> dict[str, Any]:
    path = RESULTS / name
    return dict(json_files.load(path)[part]) if path.exists() else {}


def _listed(runs: Any) -> list[Any]:
    """Return the runs of a record, which are a list or stand by their seeds."""
    return list(runs.values()) if isinstance(runs, dict) else list(runs)


def _number(values: list[float], form: str) -> str:
    return f"{statistics.mean(values):{form}}" if values else "–"


if __name__ == "__main__":
    show()
