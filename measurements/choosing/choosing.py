"""Which protection keeps how much: the averages of several measurements side by side, from their records.

    python measurements/choosing/choosing.py --show   prints them as Markdown

The first four columns are the laboratory's (`ogd reproduce which --out results`), whose `rehearsal` takes the steps of
`ExampleMemory(model)` with its defaults (tests/lab/test_one_rehearsal.py). The others are of loops that make exactly
the named call: measurements/rehearsal/rehearsal.py and measurements/real_data/flights.py.
"""

import statistics
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.memories import REHEARSAL
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import average_accuracy, find

RESULTS = Path(__file__).parents[2] / "results"
BENCHMARKS = ("Permuted", "Rotated", "Split", "Split, one softmax")  # columns of `which`
# a label, its row in `which`, and its name in the records of the loops
ROWS = (
    ("no protection", "SGD", "plain"),
    ("projection: `GradientMemory(model)`", "OGD", "gradient"),
    ("rehearsal: `ExampleMemory(model)`", REHEARSAL, "default"),
    ("ER by hand", "ER", "er"),
    ("DER++ by hand", "DER++", "der"),
    ("EWC, λ tuned on validation data", "EWC, tuned λ", ""),
    ("A-GEM", "A-GEM", ""),
    ("all data kept", "MTL", "all"),
)


def show() -> None:
    """Print a line per way of training; a dash where there is no record."""
    rehearsed = _runs("rehearsal.json", "models")
    flown = _runs("flights.json", "runs").get("flights", {})
    digits = averages()
    print(f"| | {' | '.join(BENCHMARKS)} | CNN, digits | transformer, texts | flights (AUC) | month to come |")
    print(f"| --- |{' ---: |' * (len(BENCHMARKS) + 4)}")
    for label, row, way in ROWS:
        cells = [_number(digits.get((row, name), []), ".1f") for name in BENCHMARKS]
        for model in ("cnn", "transformer"):
            runs = rehearsed.get(model, {}).get(way, [])
            cells.append(_number([100 * statistics.mean(run["accuracies"]) for run in _listed(runs)], ".1f"))
        auc = [run["auc"] for run in _listed(flown.get(way, []))]
        cells.append(_number([statistics.mean(run[11]) for run in auc], ".3f"))
        cells.append(_number([statistics.mean(run[t][t + 1] for t in range(11)) for run in auc], ".3f"))
        print(f"| {label} | {' | '.join(cells)} |")


def averages() -> dict[tuple[str, str], list[float]]:
    """Return the average accuracies (%) of the runs of each row and column of `which`."""
    experiment, dataset = EXPERIMENTS["which"], load("mnist")
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
