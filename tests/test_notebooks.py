"""The notebooks in examples/ show what they printed, and their code runs: here on little data."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
LIMIT = 200_000  # bytes, pictures included


def cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_two_and_the_documents_name_them():
    assert [path.name for path in NOTEBOOKS] == ["laboratory.ipynb", "your_own_model.ipynb"]
    readme, page = EXAMPLES / "README.md", EXAMPLES.parent / "docs" / "start.md"
    assert all(f"]({path.name})" in readme.read_text() for path in NOTEBOOKS)
    assert all(f"\n| `{path.name}` |" in page.read_text() for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_run_in_order_and_shows_its_output(path):
    run = cells(path)
    assert [cell["execution_count"] for cell in run] == list(range(1, len(run) + 1))
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in run]
    assert all(kinds)
    assert {kind for one in kinds for kind in one} <= {"stream", "display_data", "execute_result"}  # no error
    printed = [output for cell in run for output in cell["outputs"]]
    assert all(output["name"] == "stdout" for output in printed if output["output_type"] == "stream")
    assert any("image/png" in output.get("data", {}) for output in printed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_and_names_no_machine(path):
    text = path.read_text()
    assert len(text) < LIMIT
    assert not re.search(r"/(?:home|root|tmp|work|usr|opt|Users)/", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_code_runs(path, write_idx, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OGD_DATA", str(write_idx(tmp_path, shape=(28, 28))))
    monkeypatch.setattr(plt, "show", lambda: None)
    names = {"__name__": "notebook"}
    try:
        for cell in cells(path):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    finally:
        plt.close("all")
    shown = capsys.readouterr().out
    for row in re.findall(r"^(?:\| )?(\S+)", recorded(path), re.MULTILINE):
        assert row in shown


def recorded(path):
    """What the notebook printed when it was run in earnest."""
    streams = [output for cell in cells(path) for output in cell["outputs"] if output["output_type"] == "stream"]
    return "".join("".join(output["text"]) for output in streams)
