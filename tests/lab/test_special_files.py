"""Pipes, sockets and devices where files belong: readers do not wait for them, and writers do not replace them."""

import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import made_records
from ogd import json_files, tensor_files
from ogd.files import is_special, write_text
from ogd.lab import data
from ogd.lab.training import Checkpoint
from ogd.memory import GradientMemory, Memory, load
from test_cli import SMALL, run

SAID = "a pipe, a socket or a device, not a file"


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    """Whoever waits for a pipe is interrupted."""

    def give_up(*_: object) -> None:
        raise TimeoutError("waits for a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def link_to_a_pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.symlink_to(pipe(path.with_name("elsewhere")))
    return path


def device(path: Path) -> Path:
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # what /dev/null is
    except OSError:
        pytest.skip("only root makes device nodes")
    return path


def listener(path: Path) -> Path:
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket may have a hundred letters
    try:
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()
    return path


KINDS = [pipe, link_to_a_pipe, device, listener]


def kind_of(path: Path) -> tuple[int, bool]:
    return stat.S_IFMT(path.stat().st_mode), path.is_symlink()


@pytest.fixture(params=KINDS)
def special(request, tmp_path) -> Path:
    return request.param(tmp_path / "special")


def remembered() -> Memory:
    memory = GradientMemory(nn.Linear(2, 2))
    memory.remember((torch.randn(3, 2), torch.tensor([0, 1, 0])))
    return memory


def test_readers_refuse_it(special) -> None:
    assert is_special(special)
    with pytest.raises(json_files.BadFile, match=f"special is not a usable JSON file: it is {SAID}"):
        json_files.load(special)
    with pytest.raises(ValueError, match=SAID):
        tensor_files.read(special, "ogd")
    with pytest.raises(ValueError, match=f"special: it is {SAID}"):
        load(special, nn.Linear(2, 2))
    with pytest.raises(ValueError, match=f"data: .*special cannot be read: it is {SAID}"):
        data.idx.read(special)


def test_writers_leave_it(special) -> None:
    before = kind_of(special)
    for write in (lambda: remembered().save(special), lambda: write_text(special, "text")):
        with pytest.raises(OSError, match=f"special: {SAID}; give the path of a file"):
            write()
        assert kind_of(special) == before
    assert {path.name for path in special.parent.iterdir()} <= {"special", "elsewhere"}


def test_a_link_stays_and_its_file_is_replaced(tmp_path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    for there in (True, False):
        file, link = folder / f"{there}.safetensors", tmp_path / f"link-{there}.safetensors"
        if there:
            file.write_text("old")
        link.symlink_to(file)
        memory = remembered()
        memory.save(link)
        assert link.is_symlink()
        assert not file.is_symlink()
        for path in (link, file):
            assert len(load(path, memory.model)) == 3
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("name", ["run-0.json", "unit-0.json"])
def test_among_records(name, tiny_folder, tmp_path, capsys) -> None:
    command = ["run", *SMALL, "--runs", "1", "--method", "sgd", "--tasks", "2", "--data", tiny_folder, "--jobs", "1"]
    command += ["--out", tmp_path]
    assert run(capsys, *command)[0] == 0
    record = next(tmp_path.rglob("run-0.json"))
    path = pipe(record.with_name(name))
    code, _, err = run(capsys, *command)
    assert code == 2
    assert f"{path} is not a usable" in err
    assert f"it is {SAID}; remove it to run it again" in err
    code, _, err = run(capsys, "verify", tmp_path)
    assert code == 1
    assert SAID in err


def test_among_tunings_speeds_and_checkpoints(tiny_folder, tmp_path, capsys) -> None:
    pipe(tmp_path / "ewc-rotated.json")
    tune = ["tune", "ewc", *SMALL, "--grid", "1", "--data", tiny_folder, "--out", tmp_path]
    commands = [tune, ["bench", "--show", pipe(tmp_path / "mine.json")]]
    made_records.make(tmp_path / "records", ["rotated"], runs=1)
    pipe(tmp_path / "records" / "speed.json")
    for command in (*commands, ["report", tmp_path / "records"]):
        code, _, err = run(capsys, *command)
        assert (code, SAID in err) == (2, True), command
    with pytest.warns(UserWarning, match="cannot be used, starting over: it is a pipe"):
        assert Checkpoint(pipe(tmp_path / "a.safetensors"), "me").read(None, 1) is None


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_among_data(suffix, write_idx, tmp_path, capsys) -> None:
    folder = write_idx(tmp_path / "tiny", compress=bool(suffix))
    path = pipe(folder / f"t10k-labels-idx1-ubyte{suffix}")
    code, _, err = run(capsys, "run", "--data", folder, "--out", tmp_path / "out")
    assert (code, err) == (2, f"ogd: --data: {path} cannot be read: it is {SAID}\n")


def test_among_what_is_fetched(tmp_path, capsys) -> None:
    archive, out = pipe(tmp_path / "archive"), tmp_path / "out"
    code, _, err = run(capsys, "data", "flights", "--out", out, "--archive", archive)
    assert (code, err) == (2, f"ogd: --archive: {archive} is {SAID}\n")
    out.mkdir()
    file = pipe(out / next(iter(data.SOURCES["flights"].files)))
    code, _, err = run(capsys, "data", "flights", "--out", out, "--archive", archive)
    assert (code, err) == (
        2,
        f"ogd: --out: {file} exists with different content; remove it, or choose another folder\n",
    )
