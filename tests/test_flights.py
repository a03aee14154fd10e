"""The experiment and the example on the New York flights, with made flights."""

import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from example_scripts import block, frame
from ogd.lab.data import flights

ROOT = Path(__file__).parents[1]
ROWS = 1200


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("flights_figure", ROOT / "measurements" / "real_data" / "flights.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made():
    """100 flights per month; those after noon are late more often."""
    rng = np.random.default_rng(0)
    departure = rng.integers(300, 1400, ROWS)
    day = rng.integers(1, 29, ROWS)
    late = rng.random(ROWS) < np.where(departure > 720, 0.6, 0.1)
    arrays = {
        "month": np.arange(ROWS) // 100 + 1, "day": day, "weekday": day % 7, "departure": departure,
        "arrival": (departure + 120) % 1440, "distance": rng.integers(100, 2000, ROWS),
        "carrier": rng.integers(0, 3, ROWS), "origin": rng.integers(0, 3, ROWS), "dest": rng.integers(0, 5, ROWS),
        "delay": np.where(late, 30, 0),
    }  # fmt: skip
    names = {"carrier": tuple("abc"), "origin": tuple("abc"), "dest": tuple("abcde")}
    return flights.Flights(**{name: array.astype(np.int16) for name, array in arrays.items()}, names=names)


def test_the_auc_is_the_share_of_pairs_in_order(script):
    generator = torch.Generator().manual_seed(0)
    late = torch.randint(2, (60,), generator=generator)
    scores = torch.randint(8, (60,), generator=generator).double() + late  # with ties
    pairs = [float((a > b) + 0.5 * (a == b)) for a in scores[late == 1] for b in scores[late == 0]]
    assert script.auc(scores, late) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize("drawn", ["flights", "days"])
def test_what_is_held_out_is_not_trained_on(script, made, drawn):
    marked = made.distance + 0  # a number of its own for each flight
    marked[:] = np.arange(ROWS)
    object.__setattr__(made, "distance", marked)
    found = script.months(made, drawn)
    whole = set()
    for month, parts in enumerate(found, 1):
        rows = [[round(1000 * float(v)) for v in numbers[:, -1]] for _, numbers, _ in parts]
        assert {made.month[row] for part in rows for row in part} == {month}
        assert 0.4 < len(rows[0]) / 100 < 0.8
        whole |= {row for part in rows for row in part}
        days = [{made.day[row] for row in part} for part in rows]
        assert bool(days[0] & days[2]) == (drawn == "flights")
    assert len(whole) == ROWS == sum(len(late) for parts in found for _, _, late in parts)


def test_the_delay_is_not_among_the_features(script, made):
    before = script.months(made, "flights")
    late = made.delay.copy()
    object.__setattr__(made, "delay", -late)
    for old, new in zip(before, script.months(made, "flights"), strict=True):
        for (codes, numbers, _), (other_codes, other_numbers, _) in zip(old, new, strict=True):
            assert torch.equal(codes, other_codes)
            assert torch.equal(numbers, other_numbers)


@pytest.mark.parametrize(
    "way", ["plain", "gradient", "er", "der", "ewc", "agem", "default", "unlabelled", "outputs", "all"]
)
def test_every_way_learns_month_by_month(script, made, way):
    data = script.months(made, "flights")

    def scores(way):
        setting = {"lr": 0.01, "epochs": 3, "weight": 0.1, "alpha": 0.5, "ewc_lambda": 100.0}
        torch.manual_seed(0)
        model = script.network(made.names, data[0][0][1].shape[1])
        return script.trained(way, 0, data, 2, model, setting)

    found, plain = scores(way), scores("plain")
    assert found["auc"][0] == plain["auc"][0]  # in January there is nothing to keep yet
    assert (found["auc"] == plain["auc"]) == (way == "plain")
    assert np.array(found["auc"]).shape == np.array(found["log_loss"]).shape == (12, 12)
    assert found["auc"] != found["log_loss"]
    assert script.at_the_end(found["auc"]) > 0.6


def test_the_example_goes_on_from_what_it_saved(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(flights, "load", lambda _: made)
    monkeypatch.setattr(sys, "argv", ["flights.py", "data", str(tmp_path / "service")])
    runpy.run_path(str(ROOT / "examples" / "flights.py"), run_name="__main__")
    first = capsys.readouterr().out
    assert "after month 12 the memory holds 1,200 flights" in first
    assert frame(first) == frame(block("flights"))
    service = tmp_path / "service" / "protected"
    weights = (service / "month-12" / "model.safetensors").read_bytes()
    example = runpy.run_path(str(ROOT / "examples" / "flights.py"))
    example["monthly_job"](made, 12, service)  # the last job once more, as after a kill
    assert (service / "month-12" / "model.safetensors").read_bytes() == weights
    plain = (tmp_path / "service" / "plain" / "month-12" / "model.safetensors").read_bytes()
    assert plain != weights
