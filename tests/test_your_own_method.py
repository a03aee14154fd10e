"""The method of docs/laboratory.md, as a reader would follow it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ogd.lab import methods
from ogd.lab.catalogue import METHODS
from small_lab import fit, make, weights

PAGE = (Path(__file__).parents[1] / "docs" / "laboratory.md").read_text()
_, METHOD, EXPERIMENT, _ = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def replay(tmp_path):
    path = tmp_path / "replay.py"
    path.write_text(METHOD + EXPERIMENT)
    return path


def ogd(*arguments):
    command = [sys.executable, "-m", "ogd", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_replay_takes_at_most_25_lines():
    assert len(METHOD.strip().splitlines()) <= 25


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_the_page_s_replay_is_er(tiny, kind):
    scope = {}
    exec(METHOD, scope)
    METHODS.pop("replay")
    benchmark = make("split", tiny)
    mine, _ = fit(benchmark, scope["Replay"](per_task=6, replay_batch=4), kind=kind)
    ours, _ = fit(benchmark, methods.ER(per_task=6, replay_batch=4), kind=kind)
    torch.testing.assert_close(weights(mine), weights(ours))


def test_the_commands_of_the_page(replay, tiny_folder, tmp_path):
    small = ["--data", tiny_folder, "--tasks", 2, "--epochs", 1, "--runs", 2, "--out", tmp_path / "small"]
    shown = ogd("run", "--plugin", replay, "--method", "replay", "sgd", "--optimizer", "adam", "--per-task", 5, *small)
    assert re.search(r"^ ?(Replay|replay) ", shown, re.MULTILINE)
    table = ogd("reproduce", "replayed", "--plugin", replay, "--out", tmp_path / "runs")
    assert "Replay" in table
    ogd("report", tmp_path / "runs", "--plugin", replay)
    page = (tmp_path / "runs" / "report" / "index.html").read_text()
    assert re.search(r'<th scope="rowgroup"[^>]*><span class="chip"[^>]*></span>Replay', page)
