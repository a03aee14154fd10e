"""The sentence of a heading, from made cells."""

from dataclasses import replace

import pytest

from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.runs import find_runs
from ogd.lab.reporting.cells import Entry
from ogd.lab.reporting.compare import compare
from ogd.lab.reporting.findings import finding


def told(name, means):
    """Return the finding of an experiment whose lines have these means by label, a list per line or one for all."""
    comparison = compare(find_runs(EXPERIMENTS[name], load("mnist"), lambda request, runs: []))
    lines = []
    for line in comparison.lines:
        values = means.get(line.label, [])
        values = values if isinstance(values, list) else [values] * len(comparison.columns)
        entries = tuple(Entry((value,), 1) for value in values) or line.entries
        lines.append(replace(line, entries=entries))
    return finding(replace(comparison, lines=tuple(lines)))


@pytest.mark.parametrize(
    ("name", "means", "sentence"),
    [
        ("permuted", {"MTL": 99.0, "OGD": 90.0, "SGD": 80.0}, "OGD is best on average with 90.0\u00a0%; SGD has 80.0"),
        (
            "permuted",
            {"DER++": 93.0, "OGD": 90.0, "SGD": 80.0, "ER": 85.0},
            "DER++ is best on average with 93.0\u00a0%; OGD has 90.0, SGD 80.0",
        ),
        ("permuted", {"OGD": 90.0}, ""),
        ("epochs", {"EWC": 97.0, "OGD": 91.0, "SGD": 86.0},
         "EWC is best at 120 epochs with 97.0\u00a0%; OGD has 91.0, SGD 86.0"),
        ("partitions", {"OGD": 90.0, "SGD": [91.0, 80.0, 80.0, 80.0, 80.0]}, "OGD is best in 4 of 5 columns"),
        ("partitions", {"OGD": 90.0, "SGD": 80.0}, "OGD is best throughout"),
        ("variants-rotated", {"OGD-GTL": [3.0, 1.0, 1.0], "OGD-AVE": [2.0, 2.0, 1.0], "OGD-ALL": [1.0, 1.0, 2.0]},
         "No row is best in most columns"),
        ("lambda", {"Permuted MNIST": [1.0, 2.0, 3.0, 2.0, 1.0], "Split MNIST": [1.0, 2.0, 3.0, 4.0, 5.0]},
         "Permuted MNIST is best at λ = 30; Split MNIST at λ = 300"),
    ],
)  # fmt: skip
def test_the_finding_names_the_best_and_the_worst_rival_and_the_method_in_question(name, means, sentence):
    assert told(name, means) == sentence
