"""The scripts in examples/ run, on little data, and are what their README says. flights.py: tests/test_flights.py.

Those that need a framework are run by tests/integrations/test_framework_scripts.py.
"""

import re
import runpy
from pathlib import Path

import pytest
import torch

from ogd.lab import methods
from small_lab import fit, make

EXAMPLES = Path(__file__).parents[1] / "examples"
README = (EXAMPLES / "README.md").read_text()
PAGE = (EXAMPLES.parent / "docs" / "start.md").read_text()
HELPERS = {"digits.py"}
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path.name not in HELPERS)


def rows(table):
    return re.findall(r"^\| (\S+).*%.*$", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "small", "sets"),
    [
        ("own_loop", {"examples": 40, "epochs": 1}, ["upright", "turned"]),
        ("cnn", {"examples": 40, "epochs": 1}, ["upright", "turned"]),
        ("stream", {"examples": 20}, ["0°", "30°", "60°", "90°"]),
    ],
)
def test_it_compares_protected_with_unprotected(monkeypatch, capsys, name, small, sets):
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**small)
    assert rows(capsys.readouterr().out) == sets


def test_own_method_trains_and_is_a_plugin(capsys, tiny):
    script = runpy.run_path(str(EXAMPLES / "own_method.py"))
    script["main"](dataset=tiny)
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines] == ["SGD", "OGD", "Replay in conflict"]
    plain, _ = fit(make("rotated", tiny), methods.SGD())
    ours, _ = fit(make("rotated", tiny), script["Conflict"](per_task=6, replay_batch=4))
    assert not torch.equal(plain.params["0.weight"], ours.params["0.weight"])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_it_is_short_and_in_the_readme(path):
    assert len(path.read_text().splitlines()) <= 80
    assert f"\n## [`{path.name}`]({path.name})" in README
    assert f"\n| `{path.name}` |" in PAGE
    assert f"python examples/{path.name}" in path.read_text()
