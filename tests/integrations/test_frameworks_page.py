"""The code of the pages about frameworks runs, each in a scope of its own."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "extra", "package"),
    [
        ("frameworks", "lightning", "lightning"),
        ("huggingface", "hf", "transformers"),
        ("frameworks", "avalanche", "avalanche"),
    ],
)
def test_code_runs(page, extra, package, tmp_path, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'ogd[{extra}]'")
    path = DOCS / f"{page}.md"
    blocks = re.findall(rf"^```{{\.python \.{extra}}}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks:
        exec(compile(block, str(path), "exec"), scope)
    assert scope["protect"].memory is None or len(scope["protect"].memory) == 40
