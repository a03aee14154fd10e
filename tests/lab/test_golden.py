"""Every method trained on tiny data gives what it gave when golden.json was written: a change of accuracy is seen.

PYTHONPATH=tests python tests/lab/test_golden.py      writes golden.json anew, where such a change is meant
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from ogd.lab import catalogue, data
from small_lab import CASES, fit, make, weights

GOLDEN = Path(__file__).parents[1] / "golden.json"
TRAININGS = {
    f"{name} {method} {' '.join(map(str, options.values()))}".strip(): (name, kind, options)
    for name in ("permuted", "rotated", "split")
    for method, kind, options in CASES
    if method != "rehearsal"  # the library's steps say what it does: test_one_rehearsal.py
}


def trained(dataset, name, kind, options):
    """The accuracies (runs, 1 + tasks, tasks), and Σ w² of each run, which shows what accuracies on 30 images hide."""
    model, result = fit(make(name, dataset), kind(**options))
    squares = sum(w.detach().flatten(1).square().sum(1) for w in weights(model))
    return {"accuracy": result.accuracy.tolist(), "squares": squares.tolist()}


@pytest.mark.parametrize("training", TRAININGS)
def test_a_training_gives_what_it_gave(tiny, training):
    found, golden = trained(tiny, *TRAININGS[training]), json.loads(GOLDEN.read_text())[training]
    np.testing.assert_allclose(found["accuracy"], golden["accuracy"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["squares"], golden["squares"], rtol=1e-6)


def test_every_method_is_golden():
    golden = json.loads(GOLDEN.read_text())
    assert golden.keys() == TRAININGS.keys()
    assert {name.split()[1] for name in golden} == set(catalogue.METHODS) - {"rehearsal"}
    assert len({json.dumps(one) for one in golden.values()}) > 0.8 * len(golden)  # they tell methods apart


def main(write_idx):
    with tempfile.TemporaryDirectory() as folder:
        dataset = data.load(write_idx(Path(folder) / "tiny"))
    lines = [f" {json.dumps(name)}: {json.dumps(trained(dataset, *what))}" for name, what in TRAININGS.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    import torch

    from conftest import write_tiny

    torch.set_num_threads(1)
    main(write_tiny)
