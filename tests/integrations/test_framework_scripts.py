"""The scripts in examples/ that need a framework run, on little data."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "package", "sets"),
    [
        ("lightning_module", "lightning", ["upright", "turned"]),
        ("avalanche_strategy", "avalanche", ["upright", "turned"]),
        ("text_lora", "peft", ["first", "other"]),
    ],
)
def test_it_compares_protected_with_unprotected(monkeypatch, capsys, name, package, sets):
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](examples=40, epochs=1)
    assert re.findall(r"^\| (\S+).*%.*$", capsys.readouterr().out, re.MULTILINE) == sets
