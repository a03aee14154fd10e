"""The code of docs/frameworks.md runs, each framework's in a scope of its own."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


@pytest.mark.parametrize(
    ("extra", "package"), [("lightning", "lightning"), ("hf", "transformers"), ("avalanche", "avalanche")]
)
def test_code_runs(extra, package, tmp_path, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'ogd[{extra}]'")
    blocks = re.findall(rf"^```{{\.python \.{extra}}}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert scope["protect"].memory is None or len(scope["protect"].memory) == 40
