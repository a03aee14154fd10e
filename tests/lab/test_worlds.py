"""Experiments on a data set that is not in the package: found without it, trained with it."""

import json

import numpy as np
import pytest

from ogd.checks import ArgumentError
from ogd.lab.data import Dataset, Outline, load, outline
from ogd.lab.data.dataset import MNIST
from ogd.lab.experiments import EXPERIMENTS, Experiment, Row, runner
from ogd.lab.experiments.experiment import choose
from ogd.lab.experiments.memories import REHEARSAL
from ogd.lab.experiments.paper import TASKS
from ogd.lab.experiments.runs import requests_of

SETTING = {"benchmark": "split", "tasks": 5, "epochs": 1, "data": "fashion"}
ONE = Experiment("one", "One", "final", TASKS, (Row("SGD", "sgd", (SETTING,)),), runs=1)


def small():
    """A data set that says it is Fashion-MNIST, with 200 images."""
    rng, whole = np.random.default_rng(0), outline("fashion")
    images = [rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in (200, 50)]
    labels = [(np.arange(n) % 10).astype(np.uint8) for n in (200, 50)]
    return Dataset("fashion", whole.sha256, images[0], labels[0], images[1], labels[1])


def test_what_needs_a_data_set_says_how_to_get_it_and_trains_nothing(mnist, tmp_path):
    both = Experiment(
        "both", "Both", "average", ("a", "b"), (Row("SGD", "sgd", ({**SETTING, "data": "mnist"}, SETTING)),), 1
    )
    with pytest.raises(ArgumentError, match="`ogd data fashion --out data/fashion`"):
        runner.reproduce([both], mnist, tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_records_are_found_without_the_data_set_they_were_trained_on(mnist, tmp_path):
    trained, failures = runner.reproduce([ONE], mnist, tmp_path, others=[small()])
    assert failures == []
    (record,) = trained[0].records()
    assert record.request.data == "fashion"
    found, _ = runner.reproduce([ONE], mnist, tmp_path)
    assert list(found[0].records()) == [record]


def test_an_outline_has_the_digest_and_the_labels_and_cannot_train(mnist, tmp_path):
    fashion = outline("fashion")
    assert isinstance(fashion, Outline)
    assert np.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert np.bincount(fashion.test_labels).tolist() == [1000] * 10
    (request,) = requests_of(ONE.rows[0], mnist)
    with pytest.raises(ArgumentError, match="data fashion"):
        runner.run([(request, 1)], fashion, tmp_path)
    assert outline("mnist") is load("mnist")
    with pytest.raises(ArgumentError, match="did you mean 'fashion'"):
        outline("fashio")


def test_a_known_data_set_has_its_name_in_any_folder(tmp_path, mnist):
    (tmp_path / "digits").symlink_to(MNIST)
    assert (load(tmp_path / "digits").name, load(tmp_path / "digits")) == ("mnist", mnist)


def test_all_needs_no_data_set_and_the_worlds_are_compared_in_one_profile(mnist):
    assert not any(experiment.data for experiment in choose(["all"], quickly=False, runs=None))
    worlds = EXPERIMENTS["worlds"]
    assert worlds.data == EXPERIMENTS["many-runs"].data == ["fashion"]
    for row in worlds.rows:
        requests = requests_of(row, mnist)
        assert [request.data for request in requests] == ["mnist"] * 4 + ["fashion"] * 4
        assert {(request.epochs, request.lr, request.init) for request in requests} == {(1, 5e-3, "glorot")}
        assert [r.benchmark for r in requests[:4]] == [r.benchmark for r in requests[4:]]
    (ours,) = (row for row in worlds.rows if row.label == REHEARSAL)
    assert {json.dumps(r.options) for r in requests_of(ours, mnist)} == {
        json.dumps(requests_of(ours, mnist)[0].options)
    }
    rows = {e.name for e in EXPERIMENTS.values() for row in e.rows if row.label == REHEARSAL}
    assert rows == {"which", "dissimilar", "rates", "worlds", "many-runs", "board-a"}


def test_the_figures_over_the_number_of_gradients_differ_in_nothing_else(mnist):
    for name in ("rotated", "permuted", "split", "turned", "fashion"):
        *soft, replay, sgd = EXPERIMENTS[f"gradients-{name}"].rows
        options = [[request.options for request in requests_of(row, mnist)] for row in soft]
        assert [one[0]["softness"] for one in options] == [0.0, 0.01, 0.05, 0.2]
        for one in options:
            assert [o["per_task"] for o in one[:5]] == [200, 500, 1000, 2000, 5000]
            assert len({json.dumps({**o, "per_task": 0}) for o in one}) == 1
        assert all(len({r.key for r in requests_of(row, mnist)}) == 1 for row in (replay, sgd))
    newest = EXPERIMENTS["gradients-newest"]
    keys = {r.key for e in EXPERIMENTS.values() if e.name.startswith("gradients-") and e != newest
            for row in e.rows for r in requests_of(row, mnist)}  # fmt: skip
    assert {r.key for row in newest.rows for r in requests_of(row, mnist)} <= keys
