"""Names, paths and messages are shown as they are, and cannot steer the terminal."""

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

import made_records
from ogd import files
from ogd.lab import progress
from ogd.lab.progress import Display
from ogd.lab.reporting import Table
from test_cli import SMALL, run

ESC = "red\x1b[31m"
TRAIN = [*SMALL, "--method", "sgd", "--tasks", "2", "--jobs", "1"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("fashion[v2]", "fashion[v2]"),
        ("[/b]", "[/b]"),
        (":smile:", ":smile:"),
        (ESC, r"red\x1b[31m"),
        ("two\nlines", r"two\nlines"),
        ("right\u202eleft", r"right\u202eleft"),
    ],
)
def test_a_folder_is_shown_as_it_is(tmp_path, write_idx, capsys, name, shown):
    data = write_idx(tmp_path / name) if "/" not in name else tmp_path
    out = tmp_path / "out" / name
    if data != tmp_path:
        code, said, err = run(capsys, "run", "--data", data, *TRAIN, "--out", out)
        assert code == 0
        assert shown in said.splitlines()[0]
        assert shown in err
        assert "\x1b" not in said + err
    Table(name, name, (name,), (((name,),),)).show()
    assert capsys.readouterr().out.count(shown) >= 3
    for arguments in (["report", out / "none"], ["run", "--data", out / "none"], ["run", f"--{name}"]):
        code, said, err = run(capsys, *arguments)
        assert code == 2
        assert (said, "\x1b" in err, err.count("\n")) == ("", False, 1)


def test_a_key_that_is_unknown_is_escaped(tmp_path, capsys):
    made_records.make(tmp_path, ["rotated"], runs=1)
    for path in tmp_path.glob("*/run-0.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), ESC: 1}))
    code, _, err = run(capsys, "report", tmp_path)
    assert code == 2
    assert r"has the field 'red\x1b[31m' in it" in err
    assert "\x1b" not in err


def test_bytes_that_are_no_letters(tmp_path, write_idx):
    folder = os.fsencode(write_idx(tmp_path / "data")) + b"\xff"
    (tmp_path / "data").rename(os.fsdecode(folder))
    script = "from ogd.lab.cli import main; main()"
    for _ in range(2):  # the second one reads the records of the first
        done = subprocess.run(
            [sys.executable, "-c", script, "run", "--data", folder, *TRAIN, "--out", os.fsencode(tmp_path) + b"/o\xfe"],
            capture_output=True, check=True,
        )  # fmt: skip
        assert rb"data\xff" in done.stdout.splitlines()[0]
        assert rb"o\udcfe" in done.stderr


def test_a_text_that_is_not_unicode_is_an_error_of_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"x\.txt cannot be written: 'half.udcff' is not Unicode"):
        files.write_text(tmp_path / "x.txt", "half\udcff")
    assert list(tmp_path.iterdir()) == []


def test_the_bar_shows_a_name_as_it_is(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    screen = io.StringIO()
    with Display(f"fashion[v2] {ESC}") as display:
        display.console = Console(file=screen, force_terminal=True, width=100)
        display.start(10)
        display.advance(5, "[/b]")
    assert r"fashion[v2] red\x1b[31m: [/b]" in screen.getvalue()
