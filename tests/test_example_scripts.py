"""The scripts in examples/ run, on little data, and are what their README says. flights.py: tests/test_flights.py.

Those that need more than `ogd` are run by tests/integrations/test_framework_scripts.py.
"""

import runpy

import pytest
import torch

from example_scripts import EXAMPLES, README, block, prints_its_table
from ogd.lab import methods
from small_lab import fit, make

PAGE = (EXAMPLES.parent / "docs" / "start.md").read_text()
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("own_loop", {"examples": 40}),
        ("regression", {"examples": 40, "epochs": 1}),
        ("stream", {"examples": 20}),
    ],
)
def test_it_prints_the_table_of_the_readme(capsys, name, small):
    assert prints_its_table(capsys, name, **small)


def test_own_method_trains_and_is_a_plugin(capsys, tiny):
    script = runpy.run_path(str(EXAMPLES / "own_method.py"))
    script["main"](dataset=tiny)
    printed, shown = [
        [line.partition("  ")[0] for line in text.splitlines()]
        for text in (capsys.readouterr().out, block("own_method"))
    ]
    assert printed == shown
    plain, _ = fit(make("rotated", tiny), methods.SGD())
    ours, _ = fit(make("rotated", tiny), script["Conflict"](per_task=6, replay_batch=4))
    assert not torch.equal(plain.params["0.weight"], ours.params["0.weight"])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_it_is_short_and_stands_alone_and_is_in_the_readme(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 100
    assert f"python examples/{path.name}" in text
    assert not any(f"{kind} {other.stem} " in text for kind in ("from", "import") for other in SCRIPTS)
    assert f"\n## [`{path.name}`]({path.name})" in README
    assert f"\n| [`{path.name}`](#{path.name.replace('.', '')}) |" in README
    assert f"\n| `{path.name}` |" in PAGE
    assert "prints" in text.partition('"""\n\n')[0]
