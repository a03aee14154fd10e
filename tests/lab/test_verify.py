"""`ogd verify`: what is wrong with a folder of records, and with the documents that show it."""

import json
import shutil

import pytest

import made_records
from ogd.lab.cli import documents
from ogd.lab.experiments import resolve
from ogd.lab.records import speed, tuning
from ogd.lab.records.speed import Ratio
from test_cli import run


@pytest.fixture(scope="module")
def whole(tmp_path_factory, mnist):
    folder = made_records.make(tmp_path_factory.mktemp("whole"), ["rotated"])
    speed.write([Ratio("a", 1.0, 1.0, 1.0, "b")], folder / "speed.json")
    tuning.write(tuning.Tuning(resolve("rotated", "ewc", mnist), [1.0, 2.0], [[0.5, None]]), folder / "tuning")
    return folder


def first(folder):
    return min(folder.glob("rotated-ogd-*/run-1.json"))


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


WRONG = {
    "cut": (lambda f: first(f).write_text("{"), "run-1.json is not a usable record: it is not JSON"),
    "a number": (
        lambda f: edit(first(f), seconds=None),
        "run-1.json is not a usable record: seconds: must be a number",
    ),
    "another place": (lambda f: edit(first(f), run=5), "run-1.json holds another setting's result: its place is"),
    "a gap": (lambda f: first(f).with_name("run-0.json").unlink(), ": lacks run 0"),
    "fewer runs": (lambda f: first(f).unlink(), "rotated: OGD: 1 of 2 runs"),
    "a setting": (lambda f: shutil.rmtree(first(f).parent), "rotated: OGD: not run yet"),
    "a journal": (
        lambda f: (first(f).parent / "unit-0.json").write_text("[]"),
        "unit-0.json: a killed command left it",
    ),
    "a checkpoint": (lambda f: (f / "checkpoint-0.safetensors").touch(), "checkpoint-0.safetensors: a killed command"),
    "speeds": (lambda f: edit(f / "speed.json", ratios=3), "speed.json is not a usable record of speeds: ratios: must"),
    "a tuning": (lambda f: edit(f / "tuning" / "ewc-rotated.json", scores=[[7, 1]]), "scores[0][0]: must be a number"),
    "another file": (
        lambda f: (f / "cost.json").write_text('{"a": NaN}'),
        "cost.json is not a usable JSON file: a: must",
    ),
}


def test_a_whole_folder_is_right(whole, capsys):
    code, out, err = run(capsys, "verify", whole)
    assert (code, err) == (0, "")
    assert out == "16 records of 8 settings and 2 other files: all can be read, and none is missing\n"


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_listed(whole, tmp_path, capsys, what):
    folder = shutil.copytree(whole, tmp_path / "copy")
    change, said = WRONG[what]
    change(folder)
    code, out, err = run(capsys, "verify", folder)
    assert (code, out) == (1, "")
    assert err.startswith(f"ogd: 1 problem in {folder}:\n")
    assert said in err


def test_the_project_s_results_are_right(capsys, monkeypatch):
    monkeypatch.setattr(documents, "stale", lambda folder: [])  # test_documents draws every table
    code, out, _ = run(capsys, "verify", documents.ROOT / "results")
    assert code == 0
    assert "records of" in out


def test_documents_that_say_something_else_are_listed(whole, tmp_path):
    root = tmp_path / "project"
    folder = shutil.copytree(whole, root / "results")
    (root / "docs").mkdir()
    shutil.copy(documents.ROOT / "docs" / "refresh.py", root / "docs")
    (folder / "README.md").write_text(documents.index(folder))
    block = "<!-- ogd {} -->\n{}<!-- end -->\n"
    shows = "bench --show results/speed.json --markdown"
    (root / "README.md").write_text(block.format(shows, ""))
    (root / "docs" / "one.md").write_text(block.format("run --runs 9 --method sgd --out results", "a\n"))
    found = documents.stale(folder, root)
    assert [line.split("`")[0] for line in found] == ["README.md: ", "docs/one.md: "]
    assert "prints something else now" in found[0]
    assert "results does not hold all runs: rotated sgd lacks 0-1-2" in found[1]
    assert documents.stale(tmp_path / "elsewhere", root) == []
    assert documents.unchecked(folder, root) == documents.unchecked(tmp_path / "elsewhere", root) == ""
    (folder / "README.md").write_text("")
    assert "is not the index of these records" in documents.stale(folder, root)[0]


def test_documents_of_another_checkout_are_said_to_be_unchecked(whole, tmp_path, capsys):
    """As of an installed package: only the checkout that ogd runs from is trusted with code."""
    root = tmp_path / "project"
    folder = shutil.copytree(whole, root / "results")
    assert run(capsys, "verify", folder)[2] == ""
    (root / "docs").mkdir()
    (root / "docs" / "refresh.py").write_text("raise SystemExit('was run')")
    code, out, err = run(capsys, "verify", folder)
    assert code == 0
    assert "none is missing" in out
    assert err.startswith(f"the documents in {root} were not checked: ")
    assert err.count("\n") == 1
