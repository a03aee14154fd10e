"""kill -9 at any moment, the same command again: the same records as without a break."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ogd import files, tensor_files
from ogd.files import MACHINE, sweep_temporary_folders
from ogd.lab import cli
from ogd.lab.experiments import dispatch, plan, processes, resolve
from ogd.lab.records.request import from_json
from ogd.lab.training import checkpoint
from test_checkpoint import Killed

EAGER = "import ogd.lab.training.checkpoint as c; c.PATIENCE = 0.0; from ogd.lab.cli import main; main()"
SIZES = ["--tasks", "3", "--epochs", "3", "--batch-size", "4", "--hidden", "20", "--runs", "2", "--curve-every", "50"]
METHODS = ["--method", "sgd", "ogd", "agem", "ewc", "--storage", "30"]


def command(small_folder, out, jobs=1):
    arguments = ["run", *SIZES, *METHODS, "--data", small_folder, "--out", out, "--jobs", jobs]
    return [sys.executable, "-c", EAGER, *map(str, arguments)]


def found(folder, pattern):
    """The files of this name so far; a hidden folder that a writer takes away meanwhile does not count."""
    try:
        return set(folder.rglob(pattern))
    except FileNotFoundError:
        return set()


def kill_when(pattern, arguments, out):
    """Start a command and kill it the moment a file of this pattern is there."""
    before = found(out, pattern)
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not found(out, pattern) - before:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def records(out):
    """Return all records without what may differ: times."""
    found = {}
    for path in sorted(out.rglob("run-*.json")):
        found[path.relative_to(out)] = {**json.loads(path.read_text()), "seconds": 0}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_folder):
    out = tmp_path_factory.mktemp("whole")
    subprocess.run(command(small_folder, out), check=True, capture_output=True)
    found = records(out)
    assert len(found) == 8
    return found


def test_killed_at_three_moments(small_folder, tmp_path, whole):
    kill_when("checkpoint-first-*-0-1.safetensors", command(small_folder, tmp_path), tmp_path)
    assert not records(tmp_path)
    kill_when("checkpoint-0-1.safetensors", command(small_folder, tmp_path), tmp_path)
    kill_when("run-0.json", command(small_folder, tmp_path), tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("run-*.json")}
    assert kept
    subprocess.run(command(small_folder, tmp_path), check=True, capture_output=True)
    assert records(tmp_path) == whole
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"run-0.json", "run-1.json"}


def test_killed_with_processes_of_its_own(small_folder, tmp_path, whole):
    kill_when("run-0.json", command(small_folder, tmp_path, jobs=2), tmp_path)
    subprocess.run(command(small_folder, tmp_path, jobs=2), check=True, capture_output=True)
    assert records(tmp_path) == whole


def test_two_processes_in_one_folder(small_folder, tmp_path, whole):
    both = [subprocess.Popen(command(small_folder, tmp_path), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert records(tmp_path) == whole
    assert not list(tmp_path.rglob("checkpoint-*"))


def workers_of(driver):
    """The processes of this driver's workers, by what they were started with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            ours = b"ogd.lab.worker" in words and str(driver).encode() in words
            if ours and b"Z" not in (folder / "stat").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("how", "when"), [("KILL", 0), ("KILL", 0.3), ("KILL", "work"), ("TERM", 0.3), ("TERM", "work")]
)
def test_no_worker_outlives_its_driver(small_folder, tmp_path, how, when):
    """Also one that is killed while its workers start, seconds after the first is there, or when a record is there."""
    long = [*command(small_folder, tmp_path, jobs=2), "--epochs", "5"]
    driver = subprocess.Popen(long, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: workers_of(driver.pid))
    if when == "work":
        wait_for(lambda: found(tmp_path, "run-*.json"))
    else:
        time.sleep(when)
    driver.send_signal(getattr(signal, f"SIG{how}"))
    said = driver.communicate()[1].decode()
    assert driver.returncode == (-signal.SIGKILL if how == "KILL" else 143), said
    assert how == "KILL" or "run the same command again to resume" in said
    wait_for(lambda: not workers_of(driver.pid), seconds=2)


def test_folders_of_killed_processes_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for number in (gone_process(), os.getpid()):
        (tmp_path / f"ogd-{MACHINE}-{number}-abc").mkdir()
    sweep_temporary_folders()
    assert [path.name for path in tmp_path.iterdir()] == [f"ogd-{MACHINE}-{os.getpid()}-abc"]


def gone_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_killed_command_left_goes_also_if_nothing_is_to_be_trained(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(files.tempfile, "tempdir", None)
    (tmp_path / "temporary").mkdir()
    out = tmp_path / "out"
    small = ["--tasks", "2", "--epochs", "1", "--runs", "1", "--hidden", "4", "--jobs", "1"]
    arguments = ["run", *small, "--data", str(tiny_folder), "--out", str(out)]
    cli.main(arguments)
    (folder,) = out.iterdir()
    (tmp_path / "temporary" / f"ogd-{MACHINE}-{gone_process()}-abc").mkdir()
    half = folder / f".checkpoint-0.safetensors.{MACHINE}.{gone_process()}.0123abcd"
    half.mkdir()
    (half / ".tmpjFAjcV").write_text("safetensors's own")
    cli.main(arguments)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["run-0.json"]


def test_tensors_are_written_in_a_folder_that_is_known(tmp_path, monkeypatch):
    seen = []

    def save_file(tensors, path, metadata):
        seen.extend(tmp_path.iterdir())
        raise Killed

    monkeypatch.setattr("ogd.tensor_files.save_file", save_file)
    with pytest.raises(Killed):
        tensor_files.write(tmp_path / "m.safetensors", "ogd", {}, {})
    assert [path.name.rsplit(".", 1)[0] for path in seen] == [f".m.safetensors.{MACHINE}.{os.getpid()}"]
    assert list(tmp_path.iterdir()) == []


STOPPED = """
import sys

class Stop:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
from ogd.lab.cli import main
main(["list"])
"""


@pytest.mark.parametrize("module", ["ogd.lab.cli.parser", "ogd.lab.catalogue", "argparse", "numpy"])
def test_ctrl_c_while_it_starts_is_one_line(module):
    done = subprocess.run([sys.executable, "-c", STOPPED, module], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "ogd: interrupted\n")


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_worker_never_sees_ctrl_c(tmp_path):
    def blocked(process):
        (line,) = (x for x in Path(f"/proc/{process}/status").read_text().splitlines() if x.startswith("SigBlk"))
        return bool(int(line.split()[1], 16) & 1 << (signal.SIGINT - 1))

    with processes._Worker(tmp_path) as worker:
        assert blocked(worker.process.pid)
        assert not blocked(os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_killed_worker_costs_nothing_but_time(small_folder, tmp_path, whole):
    process = subprocess.Popen(command(small_folder, tmp_path, jobs=2), stdout=subprocess.DEVNULL)
    wait_for(lambda: list(tmp_path.rglob("run-0.json")))
    for worker in workers_of(process.pid)[:1]:
        os.kill(worker, signal.SIGKILL)
    assert process.wait() == 0
    assert records(tmp_path) == whole


def test_workers_that_fail_again_and_again(tiny, tmp_path):
    def stream(function, calls):
        yield calls[0][0], "its answer"
        raise OSError("gone\nsecond line")

    unit = plan.Unit(resolve("rotated", "sgd", tiny), (0,), (60,) * 5)
    others = [plan.Unit(unit.request, (r,), unit.sizes) for r in range(1, 6)]
    answers = dispatch._answers(stream, None, [(one,) for one in (unit, *others)])
    assert [next(answers)[0].group for _ in range(3)] == [(0,), (1,), (2,)]
    with pytest.raises(RuntimeError, match=r"workers failed 3 times \(OSError: gone\); run the same command again"):
        next(answers)


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_group_of_records_is_written_whole(small_folder, tmp_path, whole, capsys):
    arguments = [str(argument) for argument in command(small_folder, tmp_path)[3:]]
    cli.main(arguments)
    done = sorted(next(tmp_path.glob("*-ogd-*")).glob("run-*.json"))
    journal = done[0].with_name("unit-0-1.json")  # as a process leaves it that is killed after the first record
    journal.write_text(json.dumps([json.loads(path.read_text()) for path in done]))
    done[1].unlink()
    cli.main(arguments)
    assert records(tmp_path) == whole
    assert not journal.exists()
    journal.write_text("[{}]")
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert "not a usable journal" in capsys.readouterr().err


def test_what_a_killed_process_left_of_finished_units_is_removed(small_folder, tmp_path, monkeypatch, capsys):
    arguments = [str(argument) for argument in command(small_folder, tmp_path)[3:]]
    cli.main(arguments)
    left = next(tmp_path.glob("*-ogd-*")) / "checkpoint-0-1.safetensors"
    request = next(iter(records(tmp_path).values()))["request"]
    first = plan.Unit(from_json(request), (0, 1), (), "first").checkpoint(tmp_path)
    first.write_bytes(b"")
    other = left.with_name("checkpoint-5-6.safetensors")  # of runs that somebody else may be at
    left.write_bytes(b"")
    other.write_bytes(b"")
    cli.main(arguments)
    assert (left.exists(), first.exists(), other.exists()) == (False, False, True)


def test_a_killed_unit_does_not_train_its_epochs_again(small_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    taken = []

    class Counting(dispatch.Beacon):
        def start(self, total):
            super().start(total)
            taken.append(total)

        def advance(self, done, note):
            super().advance(done, note)
            if len(taken) == 1 and self.done > 2000:
                raise Killed

    monkeypatch.setattr(dispatch, "Beacon", Counting)
    arguments = ["run", *SIZES, "--data", str(small_folder), "--out", str(tmp_path), "--jobs", "1"]
    with pytest.raises(Killed):
        cli.main(arguments)
    cli.main(arguments)
    assert taken == [2700, 900]  # 3 tasks, 3 epochs, 300 steps; killed in the first epoch of the third task


def test_units_that_share_a_first_task(tiny, tmp_path):
    def wanted(*methods, **options):
        return [(resolve("rotated", method, tiny, tasks=2, **options), 12) for method in methods]

    firsts, units = plan.plan(wanted("sgd", "ogd") + wanted("sgd", lr=0.5), tiny, tmp_path)
    assert sorted((unit.part, len(unit.group)) for unit in units) == [
        ("all", 2), ("all", 10), ("rest", 2), ("rest", 2), ("rest", 10), ("rest", 10),
    ]  # fmt: skip
    assert sorted(len(unit.group) for unit in firsts) == [2, 10]
    assert {unit.first_key for unit in firsts} == {unit.first_key for unit in units if unit.part == "rest"}
    costs = [unit.cost for unit in units]
    assert costs[0] == max(costs)


def test_a_killed_cnn_with_adam_goes_on(write_idx, tmp_path):
    data, kept, killed = write_idx(tmp_path / "data", n=400, shape=(8, 9)), tmp_path / "whole", tmp_path / "killed"
    arguments = (
        "run --model cnn --optimizer adam --method der ogd --tasks 2 --runs 2 --epochs 3 --batch-size 20 --jobs 1"
    )
    started = [sys.executable, "-c", EAGER, *arguments.split(), "--data", str(data), "--out"]
    subprocess.run([*started, str(kept)], check=True, capture_output=True)
    for pattern in ("checkpoint-first-*", "checkpoint-0-1.safetensors"):
        kill_when(pattern, [*started, str(killed)], killed)
    subprocess.run([*started, str(killed)], check=True, capture_output=True)
    assert records(killed) == records(kept)
    assert not list(killed.rglob("checkpoint-*"))
