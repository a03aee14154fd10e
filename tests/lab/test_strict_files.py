"""Altered and hostile files: every reader refuses them with the names of the file and the field, and no traceback."""

import contextlib
import json
import re
import tracemalloc

import pytest

import made_records
from ogd import json_files
from ogd.json_files import BadFile
from ogd.lab import records
from ogd.lab.experiments import resolve
from ogd.lab.records import RunRecord, speed, tuning
from ogd.lab.records.record import to_json
from test_cli import run

DEEP = "[" * 100_000 + "]" * 100_000
RATIO = {"key": "a", "median": 1.0, "low": 1.0, "high": 1.0, "meaning": "b"}
SPEEDS = {"schema": 1, "ratios": [RATIO], "environment": {}}


def changed(value, path, new):
    """Return a copy of a JSON value with one part replaced."""
    if not path:
        return new
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("median", None, "ratios[0].median: must be a number of at least 0, not None"),
        ("median", 10**400, "ratios[0].median: is a whole number beyond 64 bits"),
        ("median", -1.0, "ratios[0].median: must be a number of at least 0, not -1.0"),
        ("high", True, "ratios[0].high: must be a number of at least 0, not True"),
        ("meaning", 3, "ratios[0].meaning: must be a text of at most 10,000 letters, not 3"),
        ("key", [1], "ratios[0].key: must be a text of at most 10,000 letters, not a list of 1"),
        ("key", "\ud800", "ratios[0].key: is not Unicode: '\\ud800'"),
    ],
)
def test_a_record_of_speeds_is_checked(tmp_path, capsys, field, value, said):
    path = tmp_path / "speed.json"
    path.write_text(json.dumps(changed(SPEEDS, ["ratios", 0, field], value)))
    made_records.make(tmp_path, ["rotated"], runs=1)
    for command in (["bench", "--show", path], ["report", tmp_path]):
        code, _, err = run(capsys, *command)
        assert (code, err) == (2, f"ogd: {path} is not a usable record of speeds: {said}; remove it to run it again\n")
    with pytest.raises(BadFile) as caught:
        speed.read(path)
    assert caught.value.path == path
    assert caught.value.field == f"ratios[0].{field}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DEEP, "it is nested more than 32 deep"),
        ("[" * 40 + "]" * 40, "[0][0][0][0]: is nested more than 32 deep"),
        ("9" * 5000, "it is not JSON"),
        ("NaN", "must be a finite number, not nan"),
        ('{"a": 1, "a": 2}', "'a': is a duplicate key"),
        ("[" + "[]," * 2_500_000 + "[]]", "it would take more than 268,435,456 bytes of memory"),
        ('"' + " " * json_files.MOST_BYTES + '"', "it is larger than 67,108,864 bytes"),
        (b"\xff", "it is not UTF-8 text (byte 0)"),
        ("", "it is not JSON"),
    ],
)
def test_what_no_file_of_ours_holds_is_refused_by_every_reader(tmp_path, content, said):
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for read in (records.read, speed.read, tuning.read, json_files.load):
        with pytest.raises(BadFile, match=re.escape(f"{path} is not a usable")) as caught:
            read(path)
        assert said in str(caught.value)


@pytest.mark.parametrize("item", ["[]", "{}", "1.5", '"ab"', '{"ab":1}', "[[]]", "123456"])
def test_a_reader_takes_no_more_memory_than_it_says(monkeypatch, item):
    monkeypatch.setattr(json_files, "MOST_MEMORY", 2**21)
    most = 2**21 // json_files.memory(f"{item},".encode())
    content = f"[{','.join([item] * (most - 5))}]".encode()
    tracemalloc.start()
    json_files.parse(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * 2**21


WIDE = [
    b'"' + b"a" * 2_000_000 + "😀".encode() + b'"',
    b'"' + b"a" * 2_000_000 + rb'\ud83d\ude00"',
    rb'"\u00e9"' * 200_000,
]


@pytest.mark.parametrize("content", WIDE, ids=["letters", "escaped", "many escapes"])
def test_one_wide_letter_makes_a_text_four_times_as_large(monkeypatch, content):
    tracemalloc.start()
    with contextlib.suppress(json_files.FieldError):
        json_files.parse(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.05 * json_files.memory(content)
    monkeypatch.setattr(json_files, "MOST_MEMORY", 0.95 * peak)
    with pytest.raises(json_files.FieldError, match="it would take more than"):
        json_files.parse(content)


@pytest.mark.parametrize("value", ["a" * 20_000, [0] * 5_000])
@pytest.mark.parametrize("field", ["momentum", "hidden", "a" * 20_000])
def test_a_message_is_never_as_long_as_a_file(tiny, tmp_path, field, value):
    written = to_json(RunRecord(resolve("rotated", "sgd", tiny, tasks=2), 0, [[0.5, 0.5]] * 3, None, 1, 2, {}))
    path = tmp_path / "run-0.json"
    path.write_text(
        json.dumps(
            changed(written, ["request", field], [value])
            if field == "hidden"
            else {**written, "request": {**written["request"], field: value}}
        )
    )
    with pytest.raises(BadFile) as caught:
        records.read(path)
    assert len(str(caught.value)) < 800


def test_who_wrote_a_file_cannot_steer_a_terminal(tmp_path):
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({**SPEEDS, "more": 1, "environment": {"ogd": "\x1b[2J"}}))
    with pytest.raises(BadFile, match=r"ogd \\x1b\[2J wrote it"):
        speed.read(path)


def parts(value, path=()):
    """Every path into a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from parts(item, (*path, key))


HOSTILE = [None, True, -1, 1e308, 10**400, "[/b]", "\x1b[2J", "\udc80", [], [1], {}, {"a": 1}, [[[[[[]]]]]]]


def test_whatever_is_changed_in_a_file_is_read_or_refused_by_its_name(tiny, tmp_path):
    record = RunRecord(
        resolve("split", "ogd", tiny, tasks=2, curve_every=5), 0, [[0.5, 0.5]] * 3, records.Curve([5], [[0.1, None]]),
        1.5, 2, {"ogd": "1"},
    )  # fmt: skip
    tuned = tuning.Tuning(resolve("rotated", "ewc", tiny, tasks=2), [1.0, 2.0], [[0.5, None]])
    files = [
        (speed.read, SPEEDS),
        (tuning.read, json.loads(tuning.write(tuned, tmp_path).read_text())),
        (records.read, to_json(record)),
    ]
    path, refused = tmp_path / "x.json", 0
    for read, written in files:
        value = json.loads(json.dumps(written))
        for where in parts(value):
            for new in HOSTILE:
                path.write_text(json.dumps(changed(value, where, new)))
                try:
                    read(path)
                except BadFile as error:
                    refused += 1
                    assert str(error).startswith(str(path))  # noqa: PT017
                    assert len(str(error)) < 600  # noqa: PT017
    assert refused > 700


@pytest.mark.parametrize("schema", [0, 99, "1", None])
def test_a_tuning_of_another_schema_is_refused(tiny, tmp_path, schema):
    path = tuning.write(tuning.Tuning(resolve("rotated", "ewc", tiny), [1.0], [[0.5]]), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))
    with pytest.raises(BadFile, match="schema"):
        tuning.read(path)


@pytest.mark.parametrize("field", ["grid", "scores"])
def test_a_tuning_without_anything_to_choose_from_is_refused(tiny, tmp_path, field):
    path = tuning.write(tuning.Tuning(resolve("rotated", "ewc", tiny), [1.0], [[0.5]]), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: []}))
    with pytest.raises(BadFile, match=rf"{field}: must have a"):
        tuning.read(path)


def test_a_journal_is_checked(tiny, tmp_path):
    request = resolve("rotated", "sgd", tiny, tasks=2)
    value = to_json(RunRecord(request, 0, [[0.5, 0.5]] * 3, None, 1.5, 2, {}))
    folder = records.folder_of(request, tmp_path)
    folder.mkdir()
    for wrong, said in [
        ({**value, "run": 10**400}, r"\[0\].run: is a whole number beyond 64 bits"),
        ({**value, "seconds": None}, r"\[0\].seconds: must be a number"),
        (3, r"\[0\]: it has no schema number"),
    ]:
        (folder / "unit-0.json").write_text(json.dumps([wrong]))
        with pytest.raises(BadFile, match=rf"unit-0.json is not a usable journal: {said}"):
            records.recover(tmp_path, request)
