import json
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch

from ogd import tensor_files
from ogd.lab import methods
from ogd.lab.progress import Silent
from ogd.lab.training import Checkpoint, Schedule, first_task
from small_lab import CASES, SCHEDULE, fit, make, stack, weights


class Killed(BaseException):
    pass


class Bomb:
    """A reporter that ends everything after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def start(self, total):
        pass

    def advance(self, done, note):
        self.left -= done
        if self.left < 0:
            raise Killed


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("ogd.lab.training.checkpoint.PATIENCE", 0.0)


def same(one, other):
    (model, result), (again, found) = one, other
    assert all(a.equal(b) for a, b in zip(weights(model), weights(again), strict=True))
    np.testing.assert_array_equal(result.accuracy, found.accuracy)
    np.testing.assert_array_equal(result.curve, found.curve)
    assert result.curve_steps == found.curve_steps


@pytest.mark.parametrize(
    "optimizer", [{}, {"momentum": 0.5}, {"optimizer": "adam", "lr": 0.01}, {"kind": "cnn"}], ids=str
)
@pytest.mark.parametrize("name", ["permuted", "split"])
@pytest.mark.parametrize(
    ("_method", "kind", "options"),
    [
        *CASES,
        ("every", methods.OGD, {"projection": "explicit", "every": 5}),
        ("soft", methods.OGD, {"per_task": 30, "softness": 0.1}),
    ],
)
def test_a_killed_training_goes_on_to_the_same_result(tiny, tmp_path, name, _method, kind, options, optimizer):
    if options.get("projection") == "implicit" and ("optimizer" in optimizer or "kind" in optimizer):
        options = {**options, "projection": None}
    if kind is methods.GPM and "kind" in optimizer:
        pytest.skip("gpm works on perceptrons only")
    benchmark = make(name, tiny, tasks=3)
    settings = {**optimizer, "curve_every": 4}
    whole = fit(benchmark, kind(**options), **settings)
    path = tmp_path / "checkpoint"
    total = Schedule(**SCHEDULE).steps(*(len(task.train) for task in benchmark.tasks))
    kept = []
    for share in (0.1, 0.55, 0.4):  # within the first epoch, within task 2, and within task 3
        bomb = Bomb(int(share * total))
        with pytest.raises(Killed):
            fit(benchmark, kind(**options), checkpoint=Checkpoint(path, "me"), progress=bomb, **settings)
        kept.append(path.exists() and _about(path))
    assert [about and (about["finished"], about["epoch"]) for about in kept] == [False, (1, 1), (2, 1)]
    same(whole, fit(benchmark, kind(**options), checkpoint=Checkpoint(path, "me"), **settings))
    same(whole, fit(benchmark, kind(**options), checkpoint=Checkpoint(path, "me"), progress=Bomb(0), **settings))


@pytest.mark.parametrize("share", [0.2, 0.36, 0.55])  # in the first task, just after it, and in the second
def test_moments_that_are_kept_are_taken_up_again(tiny, tmp_path, share):
    benchmark, path = make("rotated", tiny, tasks=3), tmp_path / "checkpoint"
    settings = {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}
    whole = fit(benchmark, methods.SGD(), **settings)
    total = Schedule(**SCHEDULE).steps(*(len(task.train) for task in benchmark.tasks))
    with pytest.raises(Killed):
        fit(benchmark, methods.SGD(), checkpoint=Checkpoint(path, "me"), progress=Bomb(int(share * total)), **settings)
    same(whole, fit(benchmark, methods.SGD(), checkpoint=Checkpoint(path, "me"), **settings))


def test_moments_that_are_kept_come_with_a_first_task(tiny):
    benchmark = make("rotated", tiny, tasks=3)
    settings = {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}
    schedule = Schedule(**{**SCHEDULE, **settings})
    first = first_task(benchmark, stack("mlp"), schedule, Silent())
    same(fit(benchmark, methods.ER(), **settings), fit(benchmark, methods.ER(), first=first, **settings))


def test_seconds_add_up(tiny, tmp_path):
    benchmark, path = make("rotated", tiny), tmp_path / "checkpoint"
    with pytest.raises(Killed):
        fit(benchmark, checkpoint=Checkpoint(path, "me"), progress=Bomb(20))
    _rewritten(path, seconds=1000.0)
    assert fit(benchmark, checkpoint=Checkpoint(str(path), "me"))[1].seconds > 1000


def _about(path):
    with safetensors.safe_open(path, "pt") as file:
        return json.loads(file.metadata()["ogd"])


def _rewritten(path, tensors=None, **changes):
    about = {key: value for key, value in _about(path).items() if key != tensor_files.DIGEST}
    tensor_files.write(path, "ogd", {**about, **changes}, {**safetensors.torch.load_file(path), **(tensors or {})})


def _altered(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be used"),
        (lambda path: path.write_bytes(b"nonsense"), "cannot be used"),
        (lambda path: path.write_bytes(b""), "cannot be used"),
        (lambda path: safetensors.torch.save_file(safetensors.torch.load_file(path), path), "cannot be used"),
        (_altered, "does not match its digest"),
        (
            lambda path: _rewritten(path, {"accuracy": safetensors.torch.load_file(path)["accuracy"] + 7}),
            "not fractions",
        ),
        (lambda path: _rewritten(path, finished=10**9), "1000000000 tasks are finished"),
        (lambda path: _rewritten(path, identity="you"), "another training"),
        (lambda path: _rewritten(path, schema=99), "another training"),
        (lambda path: _rewritten(path, {"finished/0/0.weight": torch.zeros(2, 3)}), "other shapes"),
        (
            lambda path: _rewritten(path, {"finished/0/0.weight": torch.ones(2, 8, 30).double() / 0}),
            "not finite",
        ),
        (lambda path: _rewritten(path, {"accuracy": torch.zeros(2, 5, 2)}), "other shapes"),
        (lambda path: _rewritten(path, finished=0), "accuracies after"),
        (lambda path: _rewritten(path, seconds="soon"), "cannot be used"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_left_alone_with_a_word(tiny, tmp_path, spoil, message):
    benchmark, path = make("rotated", tiny), tmp_path / "checkpoint"
    whole = fit(benchmark, methods.OGD(20))
    with pytest.raises(Killed):
        fit(benchmark, methods.OGD(20), checkpoint=Checkpoint(path, "me"), progress=Bomb(20))
    spoil(path)
    with pytest.warns(UserWarning, match=message):
        same(whole, fit(benchmark, methods.OGD(20), checkpoint=Checkpoint(path, "me")))


@pytest.mark.parametrize("share", [0.2, 0.36])  # in the first task, and just after it, where only moments are kept
@pytest.mark.parametrize(("spoil", "message"), [(lambda t: t[:1], "other shapes"), (lambda t: t / 0, "not finite")])
def test_moments_that_cannot_be_used_are_left_alone_with_a_word(tiny, tmp_path, share, spoil, message):
    benchmark, path = make("rotated", tiny, tasks=3), tmp_path / "checkpoint"
    settings = {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}
    whole = fit(benchmark, methods.SGD(), **settings)
    total = Schedule(**SCHEDULE).steps(*(len(task.train) for task in benchmark.tasks))
    with pytest.raises(Killed):
        fit(benchmark, methods.SGD(), checkpoint=Checkpoint(path, "me"), progress=Bomb(int(share * total)), **settings)
    assert (_about(path)["epoch"] == 0) == (share == 0.36)
    kept = safetensors.torch.load_file(path).items()
    _rewritten(path, {name: spoil(t) for name, t in kept if name.startswith("optimizer/") and t.is_floating_point()})
    with pytest.warns(UserWarning, match=message):
        same(whole, fit(benchmark, methods.SGD(), checkpoint=Checkpoint(path, "me"), **settings))


@pytest.mark.parametrize("changes", [{"lr": 0.1}, {"epochs": 1}, {"curve_every": 3}, {"method": methods.OGD(30)}])
def test_another_training_under_the_same_name_starts_again(tiny, tmp_path, changes):
    benchmark, path = make("rotated", tiny), tmp_path / "checkpoint"
    settings = {"method": methods.OGD(20), **changes}
    expected = fit(benchmark, **settings)
    fit(benchmark, methods.OGD(20), checkpoint=Checkpoint(path, "me"))
    with pytest.warns(UserWarning, match="another training"):
        same(expected, fit(benchmark, **settings, checkpoint=Checkpoint(path, "me")))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda benchmark: Checkpoint("file", 5), "identity: must be a text"),
        (lambda benchmark: fit(benchmark, checkpoint="file"), "checkpoint: must be an ogd.lab.training.Checkpoint"),
        (lambda benchmark: fit(benchmark, first=5), "first: must be what ogd.lab.training.first_task returned"),
    ],
)
def test_nonsense_is_refused_before_work_begins(tiny, call, message):
    with pytest.raises(TypeError, match=message):
        call(make("rotated", tiny))


def test_a_full_disk_does_not_stop_the_training(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(tmp_path / "file" / "checkpoint", "me")
    with pytest.warns(UserWarning, match="continuing without it") as caught:
        fit(make("rotated", tiny), checkpoint=checkpoint)
    assert len(caught) == 1


def test_checkpoints_keep_their_distance(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("ogd.lab.training.checkpoint.PATIENCE", 3600.0)
    fit(make("rotated", tiny), checkpoint=Checkpoint(tmp_path / "checkpoint", "me"))
    assert list(tmp_path.iterdir()) == []


def test_what_was_read_does_not_depend_on_its_file_any_more(tmp_path):
    """A mapped file that shrinks ends the process with a bus error."""
    path = tmp_path / "a.safetensors"
    tensor_files.write(path, "ogd", {}, {"t": torch.ones(100_000)})
    code = (
        "from pathlib import Path; from ogd import tensor_files; import sys\n"
        "_, found = tensor_files.read(Path(sys.argv[1]), 'ogd')\n"
        "Path(sys.argv[1]).write_bytes(b'')\n"
        "print(int(found['t'].sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "100000\n"), done.stderr
