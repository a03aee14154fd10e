"""A method and experiments that nobody foresaw: registered, they are in every table, figure and form, without code."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from made_records import made, make
from ogd.lab import catalogue, cli
from ogd.lab.catalogue import METHODS, Look, Method
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, Cell, Drawing, Experiment, Row, register
from ogd.lab.experiments.experiment import DRAWINGS
from ogd.lab.experiments.runs import find_runs
from ogd.lab.records.speed import Ratio, write
from ogd.lab.reporting import captions, compare, figures

SETTING = {"benchmark": "rotated", "tasks": 3}
SIZES = tuple({"benchmark": "split", "tasks": 2, "per_task": n} for n in (10, 100))
PLACES = tuple({"benchmark": "rotated", "angles": (0, angle)} for angle in (5, 45))
TASKS = ("task 1", "task 2", "task 3")


def rows(*settings, subject="mine", **more):
    return tuple(
        Row(METHODS[method].label, method, settings, subject=method == subject, **more) for method in ("mine", "agem")
    )


def experiments():
    published = (Cell(90.0, 1.0), Cell(91.0, 1.0), Cell(92.0, 1.0))
    table = Row("Mine, of a paper", "mine", (SETTING,), published, speed="mine_over_sgd", subject=True)
    yield Experiment("own-table", "Made up", "final", TASKS, (table, rows(SETTING)[1]), 2, note="Read `it` so.")
    for name, value, columns, settings, drawing in [
        ("own-curves", "final", TASKS, [{**SETTING, "curve_every": 10}], Drawing("curves")),
        ("own-bars", "first", ("5°", "45°"), PLACES, Drawing("bars", "angle", over="angles")),
        ("own-groups", "final", TASKS, [SETTING], Drawing("bars", "after all tasks")),
        ("own-panels", "average", ("near", "far"), PLACES, Drawing("panels")),
        ("own-lines", "first", ("10", "100"), SIZES, Drawing("lines", "stored", over="per_task", log=True)),
        ("own-points", "first", ("few", "many"), SIZES, Drawing("lines")),
        ("own-newest", "last", ("near", "far"), PLACES, Drawing("bars")),
    ]:
        yield Experiment(name, "Made up", value, columns, rows(*settings), 2, drawing=drawing)
    yield Experiment("own-plain", "Made up", "final", TASKS, (Row("Plain", "plain", (SETTING,)),), 2)


@pytest.fixture(scope="module")
def registered():
    """Put a method with a look of its own and one with none, and experiments of every kind, beside the others."""
    METHODS["mine"] = Method("Mine", "made up", dict, METHODS["agem"].options, Look("#123456", "*"))
    METHODS["plain"] = Method("Plain", "made up", dict)
    before = dict(EXPERIMENTS)
    yield [register(experiment).name for experiment in experiments()]
    for name in set(EXPERIMENTS) - set(before):
        del EXPERIMENTS[name]
    del METHODS["mine"], METHODS["plain"]


@pytest.fixture(scope="module")
def out(registered, tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("records"), registered)
    write([Ratio("mine_over_sgd", 3.21, 3, 4, "m")], folder / "speed.json")
    cli.main(["report", str(folder)])
    return folder / "report"


def test_every_kind_of_drawing_is_drawn_and_captioned(registered):
    assert set(figures.FIGURES) == set(DRAWINGS) == set(captions.READING)
    assert {EXPERIMENTS[name].drawing.kind for name in registered if EXPERIMENTS[name].drawing} == set(DRAWINGS)


def test_it_is_on_the_page_with_its_chip(registered, out):
    html = (out / "index.html").read_text(encoding="utf-8")
    for name in registered:
        assert f'id="{name}"' in html
    chip = '<span class="chip" style="background: {}"></span>{}'
    assert chip.format("#123456", "Mine") in html
    assert chip.format(catalogue.Method("", "", "").look.colour, "Plain") in html
    assert "Read <code>it</code> so." in html
    assert "Mine, of a paper's average (%)" in html


@pytest.mark.parametrize(("name", "task"), [("own-bars", 0), ("own-newest", 1)])
def test_a_cell_is_of_the_first_or_the_last_task(registered, name, task):
    found = find_runs(EXPERIMENTS[name], load("mnist"), lambda request, n: [made(request, run) for run in range(n)])
    for line, answer in zip(compare(found).lines, found.answers, strict=True):
        for entry, request in zip(line.entries, answer.requests, strict=True):
            assert entry.runs == pytest.approx([100 * made(request, run).accuracy[-1][task] for run in range(2)])


def test_it_is_in_the_files_of_tables(registered, out):
    for name in registered:
        label = "Plain" if name == "own-plain" else "Mine"
        with (out / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
            assert next(csv.DictReader(file))["row"].startswith(label)
        assert f"| {label}" in (out / "tables" / f"{name}.md").read_text(encoding="utf-8")
        assert f"\n{label}" in (out / "tables" / f"{name}.tex").read_text(encoding="utf-8")
    text = (out / "tables" / "own-table.md").read_text(encoding="utf-8")
    assert "3.2 ×" in text
    assert "90.0 ± 1.0" in text


def test_it_is_drawn_in_its_look(registered, out):
    for name in registered:
        if EXPERIMENTS[name].drawing:
            text = (out / "figures" / f"{name}.svg").read_text(encoding="utf-8")
            assert "#123456" in text
            assert METHODS["agem"].look.colour.lower() in text
    assert (out / "figures" / "own-table-heatmap.pdf").exists()


def test_an_experiment_of_a_plugin_is_listed_and_reported(tmp_path, capsys):
    plugin = tmp_path / "mine.py"
    document = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    plugin.write_text(re.findall(r"```python\n(.*?)```", document, re.DOTALL)[1])
    cli.main(["list", "--plugin", str(plugin)])
    assert "  storage " in capsys.readouterr().out
    folder = make(tmp_path / "records", ["storage"])
    cli.main(["report", str(folder), "--plugin", str(plugin)])
    assert 'id="storage"' in (folder / "report" / "index.html").read_text(encoding="utf-8")


TABLE = Experiment("own", "Made up", "final", TASKS, (Row("SGD", "sgd", (SETTING,)),), 2)


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: replace(TABLE, drawing=Drawing("radar")), "drawing: there is no 'radar'; it is one of bars, curves"),
        (lambda: replace(TABLE, drawing=Drawing("line")), "drawing: there is no 'line'; did you mean 'lines'?"),
        (lambda: replace(TABLE, value="worst"), "value: there is no 'worst'"),
        (lambda: replace(TABLE, rows=(Row("?", "nobody", (SETTING,)),)), "method: there is no 'nobody'"),
        (lambda: replace(TABLE, value="first"), "settings: row 'SGD' has 1, not 3"),
        (lambda: replace(TABLE, rows=(replace(TABLE.rows[0], published=(Cell(1, 1),)),)), "published: row 'SGD' has 1"),
        (lambda: replace(TABLE, drawing=Drawing("curves")), "curves take value 'final' and settings with curve_every"),
        (lambda: replace(TABLE, drawing=Drawing("bars", "x", "tasks")), "over: the columns of value 'final' are tasks"),
        (lambda: Drawing("panels", "x", "tasks"), "over: is for bars and lines, not for panels"),
        (lambda: Drawing("bars", "x", "tasks", log=True), "log: is for lines over a setting"),
        (
            lambda: replace(TABLE, value="first", columns=("a",), drawing=Drawing("bars", "x", "lr")),
            "over: a setting has None for 'lr', which is not a number",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_when_it_is_made(make_one, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        make_one()


def test_runs_that_are_only_in_a_journal_are_on_the_page(tiny_folder, tmp_path, capsys):
    small = "--runs 2 --epochs 1 --batch-size 10 --hidden 6 --tasks 3 --method sgd"
    cli.main(["run", *small.split(), "--data", str(tiny_folder), "--out", str(tmp_path / "records")])
    (folder,) = (path for path in (tmp_path / "records").iterdir() if path.is_dir())

    def page():
        cli.main(["report", str(tmp_path / "records"), "--out", str(tmp_path / "page")])
        return (tmp_path / "page" / "index.html").read_text()

    before, runs = page(), sorted(folder.glob("run-*.json"))
    (folder / "unit-0-1.json").write_text(json.dumps([json.loads(path.read_text()) for path in runs]))
    for path in runs:
        path.unlink()
    assert page() == before
    assert [path.name for path in folder.iterdir()] == ["unit-0-1.json"]
    (folder / "unit-0-1.json").write_text("[]")
    assert folder.name in page()  # as one that cannot be read
