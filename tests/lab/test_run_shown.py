"""What `ogd run` shows beside its table: blocks in a terminal, event files for TensorBoard, nothing in a pipe."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from made_records import made
from ogd.lab import cli
from ogd.lab.experiments import resolve
from ogd.lab.records import Curve, find
from ogd.lab.reporting import tensorboard
from ogd.lab.reporting.tables import BEFORE, BLOCKS, sparklines

ROOT = Path(__file__).parents[2]
SMALL = ["run", "--tasks", "2", "--runs", "1", "--epochs", "1", "--batch-size", "7", "--hidden", "6", "--method", "sgd"]


class Terminal:
    """Standard output that says it is a terminal."""

    def __init__(self, stream, encoding="utf-8"):
        self.stream, self.encoding = stream, encoding

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self.stream, name)


@pytest.mark.parametrize(
    ("terminal", "encoding", "form", "drawn"),
    [
        (True, "utf-8", [], True),
        (True, "latin-1", [], False),
        (True, "utf-8", ["--markdown"], False),
        (True, "utf-8", ["--json"], False),
        (False, "utf-8", [], False),
    ],
)
def test_blocks_are_for_terminals(tiny_folder, tmp_path, capsys, monkeypatch, terminal, encoding, form, drawn):
    if terminal:
        monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout, encoding))
    cli.main([*SMALL, "--data", str(tiny_folder), "--out", str(tmp_path), *form])
    out = capsys.readouterr().out
    assert ("Each task while learning" in out) == drawn
    if "--json" in form:
        assert len(json.loads(out)) == 1


def table(mnist, methods, **setting):
    return sparklines([[made(resolve("rotated", m, mnist, **setting), r) for r in range(2)] for m in methods])


def test_a_line_per_method_and_a_column_per_task(mnist):
    drawn = table(mnist, ["ogd", "sgd"], tasks=3)
    assert drawn.columns == ("method", "0°", "10°", "20°")
    (ogd,), (sgd,) = drawn.groups
    assert (ogd[0], sgd[0]) == ("ogd", "sgd")
    for task in (1, 2, 3):
        assert len(ogd[task]) == 6  # two letters for each of three moments
        assert ogd[task].count(BEFORE) == 2 * (task - 1)
    heights = [BLOCKS.index(letter) for letter in sgd[1]]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] < BLOCKS.index(ogd[1][-1])


def test_curves_are_drawn_where_there_are_some(mnist):
    (line,) = table(mnist, ["ogd"], tasks=2, curve_every=10).groups[0]
    assert len(line[1]) == len(line[2]) == 24
    assert line[2].count(BEFORE) == 12
    assert line[1][0] == BLOCKS[0]


def test_of_many_tasks_some_are_shown(mnist):
    drawn = table(mnist, ["sgd"], tasks=20)
    assert drawn.columns == ("method", "0°", "40°", "80°", "110°", "150°", "190°")
    assert "Of 20 tasks 6 are shown." in drawn.caption


def test_equal_accuracies_can_be_drawn(mnist):
    request = resolve("rotated", "sgd", mnist, tasks=2)
    record = SimpleNamespace(request=request, curve=None, accuracy=np.full((3, 2), 1.0), dead=False)
    assert sparklines([[record]]).groups[0][0][1] == BLOCKS[0] * 4


def test_what_tensorboard_is_told(mnist):
    record = made(resolve("rotated", "sgd", mnist, tasks=2), 0)
    record = type(record)(**{**vars(record), "curve": Curve([5, 10], [[0.5, None], [0.4, 0.9]])})
    found = list(tensorboard.scalars(record))
    assert len(found) == 3 * 3 + 3
    assert ("after each task/task 2", 1, record.accuracy[1][1]) in found
    assert ("after each task/average", 2, np.mean(record.accuracy[2])) in found
    assert found[-3:] == [
        ("while training/task 1", 5, 0.5),
        ("while training/task 1", 10, 0.4),
        ("while training/task 2", 10, 0.9),
    ]


def test_without_tensorboard_nothing_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        cli.main([*SMALL, "--out", str(tmp_path / "runs"), "--tensorboard", str(tmp_path / "tb")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "ogd: --tensorboard: the package is not installed; `pip install tensorboard` installs it\n"
    )
    assert not any(tmp_path.iterdir())


def test_event_files_go_to_a_folder_per_run_and_replace_older_ones(tiny_folder, tmp_path, capsys, monkeypatch):
    """With a stand-in for the writer: TensorBoard itself is not a package that the tests need."""

    class Writer:
        def __init__(self, folder):
            self.folder, self.events = tmp_path / folder, []

        def add_event(self, event):
            self.events.append(event)

        def close(self):
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{len(list(tmp_path.rglob('events*')))}"
            (self.folder / name).write_text(str(len(self.events)))

    def summary(value):
        return value

    summary.Value = SimpleNamespace
    parts = {
        "compat.proto.event_pb2": {"Event": SimpleNamespace},
        "compat.proto.summary_pb2": {"Summary": summary},
        "summary.writer.event_file_writer": {"EventFileWriter": Writer},
    }
    for name, members in parts.items():
        module = ModuleType(f"tensorboard.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: True)
    for _ in range(2):
        cli.main(
            [*SMALL, "--data", str(tiny_folder), "--out", str(tmp_path / "runs"), "--tensorboard", str(tmp_path / "tb")]
        )
    (folder,) = (tmp_path / "runs").iterdir()
    (events,) = (tmp_path / "tb").rglob("events*")
    assert events.parent == tmp_path / "tb" / folder.name / "run-0"
    assert events.read_text() == str(3 * 3)
    assert f"records: {folder}" in capsys.readouterr().err


def test_the_document_shows_what_the_records_say(mnist):
    requests = [resolve("rotated", method, mnist, init="glorot") for method in ("ogd", "sgd", "er")]
    drawn = sparklines([list(find(ROOT / "results", request).values())[:5] for request in requests])
    text = (ROOT / "docs" / "laboratory.md").read_text(encoding="utf-8")
    shown = [line.split() for line in text[text.index(drawn.title) : text.index(drawn.caption)].splitlines()]
    assert shown[1:-1] == [[*drawn.columns], *([*line] for group in drawn.groups for line in group)]
