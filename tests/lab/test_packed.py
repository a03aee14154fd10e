"""Packed files: a record per line, the same records as in files of their own, and nothing lost on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import made_records
from ogd import files, json_files
from ogd.json_files import BadFile
from ogd.lab import records
from ogd.lab.experiments import EXPERIMENTS, resolve, runner
from ogd.lab.experiments.paper import INIT
from ogd.lab.records import packed
from ogd.lab.records.folder import place_of, places, requests_at
from ogd.lab.records.record import to_json
from ogd.lab.reporting.index import index
from ogd.lab.reporting.index import pack as pack_by_experiment
from ogd.lab.reporting.other_runs import others
from ogd.lab.reporting.report import comparisons
from ogd.lab.reporting.verify import verify
from test_cli import run

RESULTS = Path(__file__).parents[2] / "results"
PACKER = "import sys; from pathlib import Path; from ogd.lab import records\n"
PACKER += "def pack(): records.pack(Path(sys.argv[1]), lambda request: request.method)\n"


def pack(folder):
    """Pack a folder as below, without looking which experiment asks for what."""
    records.pack(folder, lambda request: "rotated" if request.tasks == 5 and request.seed == 0 else "other")


def packer(folder, then="pack()"):
    """Start another process that packs a folder, each method's records in a file of their own."""
    return subprocess.Popen([sys.executable, "-c", PACKER + then, str(folder)])


def everything(folder):
    """Return all records of a folder, by request and run, as `find` finds them."""
    asked = {request.key: request for place in places(folder) for request in requests_at(place)}
    return {key: records.find(folder, request) for key, request in asked.items()}


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def single(tmp_path_factory, mnist):
    """A table, a setting that no table has, a curve, and options by their former names."""
    folder = made_records.make(tmp_path_factory.mktemp("single"), ["rotated"], full=True, runs=2)
    for method, settings in (("sgd", {"seed": 7, "curve_every": 10}), ("agem", {"tasks": 3})):
        for number in range(11):
            made_records.keep(made_records.made(resolve("rotated", method, mnist, **settings), number), folder)
    for path in folder.glob("rotated-agem-*/run-*.json"):
        path.write_text(path.read_text().replace('"per_task"', '"storage"'))
    return folder


@pytest.fixture
def folder(single, tmp_path):
    return shutil.copytree(single, tmp_path / "records")


@pytest.fixture
def gathered(folder):
    pack(folder)
    return folder


def first(folder):
    """The packed file of the table, and its lines."""
    path = folder / "rotated.runs.jsonl"
    return path, path.read_text().splitlines()


def test_a_line_is_what_a_file_of_its_own_held(folder):
    before, found = {path.read_text().strip() for path in folder.glob("*/run-*.json")}, everything(folder)
    pack_by_experiment(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["other.runs.jsonl", "rotated.runs.jsonl"]
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    assert len(lines) == len(before)
    assert set(lines) == before
    assert everything(folder) == found


@pytest.mark.parametrize("number", [0.1 + 0.2, 1 / 3, 5e-324, 1 - 2**-53, 2**-1074 * 3, 1e-5, 0.0, 1])
def test_numbers_stay_as_they_are_bit_for_bit(mnist, tmp_path, number):
    record = made_records.made(resolve("rotated", "sgd", mnist, tasks=1), 0)
    record = replace(record, accuracy=[[number], [1 - number]], seconds=1e300 * number)
    path = records.write(record, tmp_path)
    text = path.read_text()
    pack(tmp_path)
    assert (tmp_path / "other.runs.jsonl").read_text() == text
    found = records.find(tmp_path, record.request)[0]
    assert [a.hex() for (a,) in found.accuracy] == [float(a).hex() for (a,) in record.accuracy]
    assert found == record


def test_a_file_that_was_laid_out_by_hand_becomes_one_line(folder):
    path, before = min(folder.glob("*/run-1.json")), everything(folder)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2) + "\n\n")
    pack(folder)
    assert everything(folder) == before


def test_lines_are_sorted_by_what_was_asked_and_numbers_by_their_size(mnist, tmp_path):
    asked = [("ogd", {"per_task": n, "angles": (0, a)}) for a in (5, 45, 180) for n in (9, 20, 100)]
    asked = [("agem", {}), *asked, ("sgd", {})]
    wanted = [(resolve("rotated", method, mnist, **settings), r) for method, settings in asked for r in (0, 1, 2, 10)]
    for request, number in reversed(wanted):
        made_records.keep(made_records.made(request, number), tmp_path)
        records.pack(tmp_path, lambda request: "all")
    (path,) = tmp_path.iterdir()
    assert [(line.record.request, line.record.run) for line in packed.read(path)] == wanted


def test_a_setting_is_in_the_file_of_the_first_experiment_that_asks_for_it(mnist, tmp_path):
    made_records.make(tmp_path, ["every", "rotated"], full=True, runs=1)  # they share settings
    both = resolve("rotated", "der", mnist, epochs=1, lr=5e-3, init=INIT)  # of rotated when quick, of kept itself
    made_records.keep(made_records.made(both, 0), tmp_path)
    pack_by_experiment(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "every.runs.jsonl",
        "kept.runs.jsonl",
        "rotated.runs.jsonl",
    ]
    for name in ("rotated", "every"):
        own = [setting for row in EXPERIMENTS[name].rows for setting in row.settings]
        assert len((tmp_path / f"{name}.runs.jsonl").read_text().splitlines()) == len(own) - 2 * (name == "every")
    assert place_of(both, tmp_path).name == "kept.runs.jsonl"


def test_later_runs_join_the_others_wherever_those_are(gathered, mnist):
    moved = gathered / "mine.runs.jsonl"
    (gathered / "other.runs.jsonl").rename(moved)
    before = everything(gathered)
    record = made_records.made(resolve("rotated", "agem", mnist, tasks=3), 11)
    made_records.keep(record, gathered)
    assert everything(gathered) == {**before, record.request.key: {**before[record.request.key], 11: record}}
    pack(gathered)
    assert sorted(path.name for path in gathered.iterdir()) == ["mine.runs.jsonl", "rotated.runs.jsonl"]
    assert [line.record.run for line in packed.read(moved)] == [*range(12), *range(11)]


def test_packing_again_changes_nothing_and_journals_and_checkpoints_stay(gathered, mnist):
    request = resolve("rotated", "mtl", mnist, seed=3)
    own = records.folder_of(request, gathered)
    own.mkdir()
    (own / "checkpoint-1.safetensors").touch()
    (own / "unit-1.json").write_text(json.dumps([to_json(made_records.made(request, 1))]))
    made_records.keep(made_records.made(request, 0), gathered)
    pack(gathered)
    assert sorted(path.name for path in own.iterdir()) == ["checkpoint-1.safetensors", "unit-1.json"]
    assert sorted(records.find(gathered, request)) == [0, 1]
    before = {path: path.stat() for path in gathered.glob("*.jsonl")}
    pack(gathered)
    assert {path: path.stat() for path in gathered.glob("*.jsonl")} == before


def test_everything_shows_the_same_of_both(single, gathered):
    def shown(folder):
        found = comparisons(folder)
        more = others(folder, [comparison.found for comparison in found])
        rows = [line.split(" | ", 1)[1] for line in index(folder).splitlines() if line.startswith("| [")]
        return found, more, sorted(rows), verify(folder)

    *_, rows, verdict = before = shown(single)
    assert len(rows) == 10
    assert str(verdict) == "38 records of 10 settings and 0 other files"
    assert verdict.problems == []
    assert shown(gathered) == before


def test_what_is_packed_is_not_trained_again(tiny_folder, tmp_path, capsys):
    small = ["run", "--epochs", 1, "--hidden", 6, "--tasks", 2, "--method", "sgd", "ogd"]
    small += ["--data", tiny_folder, "--out", tmp_path, "--jobs", 1, "--runs"]
    _, before, _ = run(capsys, *small, 2, "--json")
    pack(tmp_path)
    with runner.reading_only():
        assert run(capsys, *small, 2, "--json")[1] == before
        told = f"records: {tmp_path / 'other.runs.jsonl'}\n" * 2 + f"to draw them: ogd report {tmp_path}\n"
        assert run(capsys, *small, 2)[2] == told
    code, more, _ = run(capsys, *small, 3, "--json")
    assert code == 0
    assert [one for one in json.loads(more) if one["run"] < 2] == json.loads(before)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["run-2.json"] * 2


def test_a_plugin_s_records_are_read_with_the_plugin(gathered):
    path, lines = first(gathered)
    path.write_text("\n".join([*lines[:3], lines[3].replace('"method": "', '"method": "my-')]))
    with pytest.raises(BadFile, match=r"line 4 has the method 'my-\w+', which .* load the plugin that has it"):
        packed.read(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is not JSON"),
        ("<<<<<<< HEAD", "it is not JSON"),
        ("{}", "it has no schema number"),
        ("[" * 100_000, "it is nested more than 32 deep"),
        ('{"a": 1, "a": 2}', "'a': is a duplicate key"),
        (b"\xff", r"it is not UTF-8 text \(byte 0\)"),
        (b" " * json_files.MOST_BYTES, "it is larger than 67,108,864 bytes"),
        (lambda text: text[:-9], "it is not JSON"),
        (lambda text: text + text, "it is not JSON"),
        (lambda text: text.replace('"run": 0', '"run": -1'), "run: must be a whole number of at least 0, not -1"),
        (lambda text: text.replace('"seconds": 60.5', '"seconds": NaN'), "seconds: must be a finite number, not nan"),
        (lambda text: text.replace('"lr": 0.001', '"lr": 0'), "request.lr: must be a positive number, not 0"),
    ],
)
def test_a_line_that_is_no_record_is_named(gathered, capsys, content, said):
    path, lines = first(gathered)
    content = content(lines[4]) if callable(content) else content
    lines = [line.encode() for line in lines]
    lines[4] = content.encode() if isinstance(content, str) else content
    path.write_bytes(b"\n".join(lines))
    message = rf"rotated.runs.jsonl, line 5 is not a usable record: {said}.*; remove that line to run it again"
    with pytest.raises(BadFile, match=message) as caught:
        records.find(gathered, packed.read(gathered / "other.runs.jsonl")[0].record.request)
    assert caught.value.path == path
    before = contents(gathered)
    for command in ("report", "verify"):
        code, _, err = run(capsys, command, gathered)
        assert code == (2 if command == "report" else 1)
        assert f"{path}, line 5 is not a usable record" in err
    with pytest.raises(BadFile, match="line 5"):
        pack(gathered)
    assert contents(gathered) == before


def test_a_newer_version_s_line_is_told_plainly(gathered):
    path, lines = first(gathered)
    path.write_text(lines[0] + "\n" + lines[1].replace('"schema": 1', '"schema": 99'))
    with pytest.raises(BadFile, match=r"line 2 has schema 99, which this ogd .* ogd 0.1.0 wrote it: upgrade ogd"):
        packed.read(path)


def test_an_empty_file_is_refused(gathered):
    path, _ = first(gathered)
    path.write_text("")
    with pytest.raises(BadFile, match=r"rotated.runs.jsonl is not a usable file of records: it is empty"):
        everything(gathered)
    assert "it is empty" in verify(gathered).problems[0]


def test_verify_lists_every_line_that_is_wrong(gathered):
    path, lines = first(gathered)
    (gathered / "deeper").mkdir()
    shutil.copy(path, gathered / "deeper")
    path.write_text("\n".join(["{", *lines[1:5], "3", *lines[6:]]))
    found = verify(gathered)
    problems = [problem.partition(" is not a usable")[0] for problem in found.problems]
    assert f"{gathered / 'deeper' / path.name} is found by no command: its place is {path}" in problems
    assert f"{path}, line 1" in problems
    assert f"{path}, line 6" in problems
    assert len(problems) == 3
    assert (found.records, found.settings) == (38, 10)


def test_a_gap_is_found_in_a_packed_file_and_files_of_single_runs_fill_it(gathered):
    path = gathered / "other.runs.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    gap = [number for number, line in enumerate(packed.read(path)) if line.record.run in (3, 5)]
    path.write_text("".join(line for number, line in enumerate(lines) if number not in gap))
    assert [problem.partition(": ")[2] for problem in verify(gathered).problems] == [
        "lacks runs 3, 5 of A-GEM on rotated 0° 10° 20°",
        "lacks runs 3, 5 of SGD on rotated 0° 10° 20° 30° 40°, seed 7, curve_every 10",
    ]
    for number in gap:
        made_records.keep(records.record.from_json(json.loads(lines[number])), gathered)
    assert verify(gathered).problems == []


def test_a_run_beyond_all_counting_takes_no_memory(mnist, tmp_path):
    record = made_records.made(resolve("rotated", "sgd", mnist), 0)
    made_records.keep(replace(record, run=2**62), tmp_path)
    pack(tmp_path)
    (problem,) = verify(tmp_path).problems
    assert "lacks runs 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 of SGD on rotated" in problem


@pytest.mark.parametrize("where", ["the same file", "another file", "a file of its own"])
def test_two_results_of_one_run_are_refused_and_the_same_one_twice_is_not(gathered, where):
    path, lines = first(gathered)
    before = everything(gathered)
    record = packed.read(path)[0].record
    other = {
        "the same file": path,
        "another file": gathered / "a.runs.jsonl",
        "a file of its own": record.path(gathered),
    }[where]

    def add(text):
        other.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        with other.open("a" if other == path else "w") as file:
            file.write(text + "\n")

    add(lines[0])
    assert everything(gathered) == before
    verdict = verify(gathered)
    assert (verdict.records, verdict.problems) == (38, [])
    add(lines[0].replace('"seconds": 60.5', '"seconds": 60.75'))
    names = r"(rotated.runs.jsonl, line \d+|a.runs.jsonl, line 1|run-\d+.json)"
    message = rf"{names} and .*{names} hold different results of one run; remove one of them"
    there = contents(gathered)
    for attempt in (lambda: records.find(gathered, record.request), lambda: pack(gathered)):
        with pytest.raises(ValueError, match=message):
            attempt()
    assert contents(gathered) == there
    (problem,) = verify(gathered).problems
    assert str(other) in problem
    assert str(path) in problem
    add(lines[0])
    pack(gathered)
    assert everything(gathered) == before


KILLED = """
import os, signal
from pathlib import Path
left = int(sys.argv[3])
def counted(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
setattr(*eval(sys.argv[2]), counted(getattr(*eval(sys.argv[2]))))
pack()
"""


@pytest.mark.parametrize(
    ("call", "number"),
    [("os, 'fsync'", 0), ("Path, 'replace'", 1), ("Path, 'unlink'", 0), ("Path, 'unlink'", 9), ("Path, 'rmdir'", 0)],
)
def test_a_kill_at_any_moment_loses_nothing(folder, call, number):
    before = everything(folder)
    command = [sys.executable, "-c", PACKER + KILLED, str(folder), call, str(number)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert everything(folder) == before
    files.sweep(folder)
    pack(folder)
    assert everything(folder) == before
    assert all(path.name.endswith(".runs.jsonl") for path in folder.iterdir())


def test_a_full_disk_leaves_everything_as_it_was(folder, monkeypatch):
    before = contents(folder)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        pack(folder)
    assert contents(folder) == before


def test_one_process_packs_at_a_time(folder):
    before = everything(folder)
    with files.lock_folder(folder):
        waiting = packer(folder)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=3)
        assert not list(folder.glob("*.jsonl"))
    assert waiting.wait(timeout=60) == 0
    assert everything(folder) == before


def test_a_reader_finds_every_record_while_two_processes_pack(mnist, tmp_path):
    requests = [resolve("rotated", method, mnist, seed=seed) for method in ("sgd", "mtl") for seed in range(3)]
    packing = [packer(tmp_path, "while not (Path(sys.argv[1]) / 'stop').exists(): pack()") for _ in range(2)]
    try:
        for number in range(15):
            for request in requests:
                records.write(made_records.made(request, number), tmp_path)
            for request in requests:
                assert list(records.find(tmp_path, request)) == list(range(number + 1))
            while not list(tmp_path.glob("*.jsonl")):  # the others are still being started
                assert all(process.poll() is None for process in packing)
                time.sleep(0.01)
    finally:
        (tmp_path / "stop").touch()
        codes = [process.wait(timeout=60) for process in packing]
    assert codes == [0, 0]
    records.pack(tmp_path, lambda request: request.method)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mtl.runs.jsonl", "sgd.runs.jsonl", "stop"]
    assert all(list(records.find(tmp_path, request)) == list(range(15)) for request in requests)


def test_a_file_that_is_packed_while_it_is_looked_for_is_found(folder, monkeypatch):
    before, request = everything(folder), requests_at(min(folder.iterdir()))[0]
    place = records.record.RunRecord.path

    def packing(record, where):
        monkeypatch.undo()
        pack(folder)
        return place(record, where)

    monkeypatch.setattr(records.record.RunRecord, "path", packing)
    assert records.find(folder, request) == before[request.key]


def test_a_file_that_changes_is_read_again(gathered):
    path, lines = first(gathered)
    request = packed.read(path)[0].record.request
    assert list(records.find(gathered, request)) == [0, 1]
    status = path.stat()
    files.write_text(path, "\n".join(lines[1:]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(records.find(gathered, request)) == [1]


def test_other_files_of_lines_are_not_ours(gathered):
    before = everything(gathered)
    (gathered / "data.jsonl").write_text("mine\n")
    assert everything(gathered) == before
    assert verify(gathered).problems == []


def test_the_project_s_results_are_packed(tmp_path):
    assert not list(RESULTS.glob("*/run-*.json"))
    assert {path.name.partition(".")[0] for path in packed.paths(RESULTS)} <= {*EXPERIMENTS, "other"}
    assert sum(path.is_file() for path in RESULTS.rglob("*")) < 150
    for path in packed.paths(RESULTS):
        shutil.copy(path, tmp_path)
    before = contents(tmp_path)
    pack_by_experiment(tmp_path)
    assert contents(tmp_path) == before
