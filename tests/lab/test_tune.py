"""`ogd tune`: chosen on training data alone, killed and gone on with, and what it makes of damage."""

import json
import shutil
import subprocess
import sys

import pytest

from ogd.lab import cli
from ogd.lab.experiments import tune as tuning
from ogd.lab.progress import Silent
from ogd.lab.records import tuning as records
from ogd.lab.training import checkpoint
from test_checkpoint import Killed
from test_cli import SMALL, run
from test_resume import EAGER, kill_when


def tune(small_folder, out, *options):
    sizes = ["--tasks", 3, "--epochs", 3, "--batch-size", 4, "--hidden", 20, "--runs", 2, "--lr", 0.1]
    arguments = ["tune", "ewc", *sizes, "--grid", 1, 10, 1e9, "--data", small_folder, "--out", out, *options]
    return list(map(str, arguments))


def scores(out):
    return json.loads((out / "ewc-rotated.json").read_text())["scores"]


def test_tune_chooses_on_training_data_alone(small_folder, tmp_path, capsys):
    arguments = ["tune", "ewc", *SMALL, "--tasks", 2, "--grid", "1", "1e4", "1e9", "--lr", 0.1]
    arguments += ["--data", small_folder, "--out", tmp_path]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "diverged" in out
    found = records.read(tmp_path / "ewc-rotated.json")
    assert found.grid == [1.0, 1e4, 1e9]
    assert [row[2] for row in found.scores] == [None, None]
    assert f"chosen: --ewc-lambda {found.choice:g}" in out
    before = (tmp_path / "ewc-rotated.json").read_text()
    test_labels = small_folder.parent / "other"
    shutil.copytree(small_folder, test_labels)
    path = test_labels / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:8] + bytes(reversed(path.read_bytes()[8:])))
    run(capsys, *arguments[:-3], test_labels, "--out", tmp_path)
    assert records.read(tmp_path / "ewc-rotated.json").scores == json.loads(before)["scores"]


def test_a_killed_tuning_ends_in_the_same_scores(small_folder, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    eager = [sys.executable, "-c", EAGER]
    subprocess.run([*eager, *tune(small_folder, whole)], check=True, capture_output=True)
    assert [row[2] for row in scores(whole)] == [None, None]  # a λ that diverges is kept in a checkpoint, too
    for pattern in ("*-first.safetensors", "*-rest.safetensors", "ewc-rotated.json", "*-rest.safetensors"):
        kill_when(pattern, [*eager, *tune(small_folder, killed)], killed)
    done = subprocess.run([*eager, *tune(small_folder, killed)], check=True, capture_output=True, text=True)
    assert "cannot be used" not in done.stderr
    assert scores(killed) == scores(whole)
    assert [path.name for path in killed.iterdir()] == ["ewc-rotated.json"]


def test_a_tuning_trains_nothing_twice(small_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    totals, left = [], [0]

    class Counting(Silent):
        def __init__(self, _):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start(self, total):
            totals.append(total)

        def advance(self, done, note):
            left[0] -= done
            if left[0] == 0:
                raise Killed

    monkeypatch.setattr(tuning, "Display", Counting)
    left[0] = 2250 + 750 + 600  # 250 steps per epoch, 3 epochs, 3 tasks: in the third epoch of run 1's second task
    with pytest.raises(Killed):
        cli.main(tune(small_folder, tmp_path))
    assert len(scores(tmp_path)) == 1
    kept = list(tmp_path.glob("checkpoint-*"))
    cli.main(tune(small_folder, tmp_path))
    assert totals == [750, 1500, 750, 1500, 0, 1000]
    for path in kept:  # as a kill between the record and their removal leaves them
        path.write_bytes(b"")
    cli.main(tune(small_folder, tmp_path))
    cli.main(tune(small_folder, tmp_path, "--runs", 1))
    assert len(totals) == 6
    assert len(scores(tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["ewc-rotated.json"]


def test_a_slower_tuning_keeps_what_a_faster_one_recorded(small_folder, tmp_path, monkeypatch, capsys):
    def overtaken(benchmark, asked, run, kept, display):
        records.write(records.Tuning(asked.request, asked.grid, [[0.5, 0.6, None]] * 3), tmp_path)
        return [0.1, 0.1, 0.1]

    monkeypatch.setattr(tuning, "_score", overtaken)
    cli.main(tune(small_folder, tmp_path))
    assert scores(tmp_path) == [[0.5, 0.6, None]] * 3
    assert "over 3 runs" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ['{"schema": 1}', "[" * 100_000, '{"schema": 1, "grid": [1.0], "scores": {}}'])
def test_a_tuning_that_cannot_be_read(small_folder, tmp_path, capsys, damage):
    (tmp_path / "ewc-rotated.json").write_text(damage)
    with pytest.raises(SystemExit, match="2"):
        cli.main(tune(small_folder, tmp_path))
    assert "ewc-rotated.json is not a usable record of a tuning" in capsys.readouterr().err


def test_a_tuning_in_which_everything_diverges(small_folder, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        cli.main(tune(small_folder, tmp_path, "--grid", 1e30, 1e35, "--runs", 1))
    printed = capsys.readouterr()
    assert printed.out.count("diverged") == 2
    assert "with every value of the grid a run diverged or ended dead" in printed.err
    assert json.loads((tmp_path / "ewc-rotated.json").read_text())["choice"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["ewc-rotated.json"]
