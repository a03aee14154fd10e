import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import naive_lab
from ogd import __version__, files
from ogd.lab import catalogue, records
from ogd.lab.experiments import resolve
from ogd.lab.records import Curve, RunRecord, packed, speed, tuning
from ogd.lab.records.record import environment


def make(dataset, run=0, method="ogd", **options):
    request = resolve("rotated", method, dataset, tasks=2, **options)
    curve = Curve([3, 6], [[0.5, None], [0.25, 0.75]])
    return RunRecord(request, run, [[0.1, 0.2], [0.3, 0.4], [0.5, 1.0]], curve, 1.5, 2, environment())


def test_round_trip(tiny, tmp_path):
    record = make(tiny, run=3)
    path = records.write(record, tmp_path)
    assert path == record.path(tmp_path)
    assert records.read(path) == record
    assert records.find(tmp_path, record.request) == {3: record}
    assert records.find(tmp_path, replace(record.request, lr=0.1)) == {}
    assert [p.name for p in path.parent.iterdir()] == ["run-3.json"]


def test_a_split_request_survives_json(tiny, tmp_path):
    request = resolve("split", "mtl", tiny, partition="01/23/45/67/89")
    record = replace(make(tiny), request=request, accuracy=[[0.5] * 5] * 6, curve=None)
    assert records.read(records.write(record, tmp_path)).request == request


def test_the_key_tells_requests_apart(tiny):
    base = resolve("rotated", "sgd", tiny)
    changes = [
        resolve("rotated", "mtl", tiny),
        resolve("permuted", "sgd", tiny),
        *(
            resolve("rotated", "sgd", tiny, **{name: value})
            for name, value in [
                ("tasks", 4), ("angles", [0, 10, 20, 30, 41]), ("hidden", [100]), ("epochs", 4),
                ("batch_size", 9), ("lr", 1e-2), ("seed", 1), ("curve_every", 10), ("momentum", 0.5),
                ("optimizer", "adam"), ("init", "he"),
            ]
        ),
        resolve("split", "sgd", tiny),
        resolve("split", "sgd", tiny, heads="single"),
        resolve("split", "sgd", tiny, partition="random:1"),
        replace(base, model="cnn"),
        replace(base, data_sha256="other"),
    ]  # fmt: skip
    assert len({base.key, *(request.key for request in changes)}) == len(changes) + 1
    assert resolve("rotated", "sgd", tiny, tasks=5).key == base.key
    ogd = resolve("rotated", "ogd", tiny)
    assert replace(ogd, options=dict(reversed(ogd.options.items()))).key == ogd.key  # in whatever order they were given


def test_an_interrupted_write_leaves_nothing(tiny, tmp_path, monkeypatch):
    record = make(tiny)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        records.write(record, tmp_path)
    assert list(record.path(tmp_path).parent.iterdir()) == []


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path):
    write = "import os, signal, sys; from pathlib import Path; from ogd import files\n"
    write += "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
    write += "files.write_text(Path(sys.argv[1]) / 'run-0.json', '{}')"
    subprocess.run([sys.executable, "-c", write, str(tmp_path)], check=False)
    (killed,) = tmp_path.iterdir()
    others = [
        f".run-0.json.{files.MACHINE}.{os.getpid()}.0a1b2c3d",  # of a process that lives
        killed.name.replace(files.MACHINE, "00000000"),  # of another machine, whose process numbers say nothing here
        killed.name.replace(files.MACHINE, "00000001"),  # of another one, and old
        ".mine.1.txt",
    ]
    for name in others:
        (tmp_path / name).touch()
    old = others.pop(2)
    os.utime(tmp_path / old, (0, 0))
    files.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def damage(**changes):
    def apply(text):
        return json.dumps({**json.loads(text), **changes})

    return apply


def asked(**changes):
    def apply(text):
        value = json.loads(text)
        return json.dumps({**value, "request": {**value["request"], **changes}})

    return apply


def drop(*path):
    def apply(text):
        value = json.loads(text)
        inner = value["request"]
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]
        return json.dumps(value)

    return apply


def add(*path):
    def apply(text):
        value = json.loads(text)
        inner = value
        for name in path:
            inner = inner[name]
        inner["surprise"] = 1
        value["environment"]["ogd"] = "7.8.9"
        return json.dumps(value)

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage(schema=0), "its schema is 0, not 1"),
        (damage(schema="1"), "its schema is '1', not 1"),
        (lambda text: text[: len(text) // 2], "is not a usable record"),
        (lambda text: "[]", "it has no schema number"),
        (lambda text: "{}", "it has no schema number"),
        (drop("lr"), "its request lacks lr"),
        (drop("options", "per_task"), "its request lacks the option per_task"),
        (lambda text: text.replace('"run": 0', '"ran": 0'), "it lacks run"),
        (damage(request=3), "its request is not an object"),
        (damage(accuracy=[[0.5]]), "accuracy: must be a list of 3, not 1"),
        (
            damage(accuracy=[[0.1, 0.2], [0.3, 0.4], [0.5, 1.5]]),
            r"accuracy\[2\]\[1\]: must be a number of at least 0 and at most 1, not 1.5",
        ),
        (damage(accuracy=[[0.1, 0.2], [0.3, 0.4], [0.5, None]]), r"accuracy\[2\]\[1\]: must be a number .*, not None"),
        (damage(accuracy="abc"), "accuracy: must be a list of 3, not 'abc'"),
        (damage(accuracy=[["0.1", 0.2], [0.3, 0.4], [0.5, 1]]), r"accuracy\[0\]\[0\]: must be a number .*, not '0.1'"),
        (damage(run=-1), "run: must be a whole number of at least 0, not -1"),
        (damage(seconds="long"), "seconds: must be a number of at least 0, not 'long'"),
        (damage(curve={"steps": [1]}), "its curve lacks accuracy"),
        (damage(curve={"steps": [1], "accuracy": [[0.1]]}), r"curve.accuracy\[0\]: must be a list of 2, not 1"),
        (
            damage(curve={"steps": [0], "accuracy": [[0.1, 0.1]]}),
            r"curve.steps\[0\]: must be a whole number of at least 1",
        ),
        (
            damage(curve={"steps": [1], "accuracy": [[1.5, 0.1]]}),
            r"curve.accuracy\[0\]\[0\]: must be .* at most 1, not 1.5",
        ),
        (damage(curve={"steps": [1], "accuracy": [[0, -1]]}), r"curve.accuracy\[0\]\[1\]: must be .* at least 0"),
        (damage(curve={"steps": [1], "accuracy": []}), "curve.accuracy: must be a list of 1, not 0"),
        (
            damage(accuracy=[[0.1, -0.2], [0.3, 0.4], [0.5, 1]]),
            r"accuracy\[0\]\[1\]: must be .* at least 0 .*, not -0.2",
        ),
        (damage(seconds=-1), "seconds: must be a number of at least 0, not -1"),
        (damage(lockstep=0), "lockstep: must be a whole number of at least 1, not 0"),
        (asked(settings=3), r"request\.settings: must be an object, not 3"),
        (asked(hidden=[0]), r"request\.hidden: must be"),
        (asked(tasks=0), r"request\.tasks: must be a whole number of at least 1"),
        (asked(heads=3), r"request\.heads: must be a text"),
        (asked(angles=[0]), r"request\.angles: must be a list of 2, not 1"),
        (asked(angles=[0, "a"]), r"request\.angles\[1\]: must be a"),
        (asked(data=3), r"request\.data: must be a text"),
        (damage(environment=3), "environment: must be an object, not 3"),
        (damage(environment={"commit": 5}), "environment.'commit': must be a text"),
        (damage(seconds=float("nan")), "seconds: must be a finite number, not nan"),
    ],
)
def test_a_damaged_record_says_so(tiny, tmp_path, change, message):
    path = records.write(make(tiny), tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as caught:
        records.read(path)
    assert str(path) in str(caught.value)
    assert "remove it to run it again" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage(schema=99, environment={"ogd": "7.8.9"}), "has schema 99"),
        (add(), "has the field 'surprise' in it"),
        (add("request"), "has the field 'surprise' in its request"),
        (add("request", "options"), "has the option 'surprise' in its request"),
        (add("curve"), "has the field 'surprise' in its curve"),
    ],
)
def test_a_newer_version_s_record_is_told_plainly(tiny, tmp_path, change, message):
    path = records.write(make(tiny), tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as caught:
        records.read(path)
    said = f"which this ogd ({__version__}) does not know; ogd 7.8.9 wrote it: upgrade ogd to read it"
    assert str(caught.value) == f"{path} {message}, {said}"


def test_a_record_of_a_plugin_s_method_says_what_to_load(tiny, tmp_path):
    path = records.write(make(tiny), tmp_path)
    path.write_text(path.read_text().replace('"method": "ogd"', '"method": "mine"'))
    with pytest.raises(ValueError, match=r"has the method 'mine', which .* load the plugin that has it \(--plugin"):
        records.read(path)


def test_other_kinds_of_records_have_versions_too(tiny, tmp_path):
    path, request = tmp_path / "x.json", resolve("rotated", "ewc", tiny)
    written = tuning.write(tuning.Tuning(request, [1.0, 2.0], [[0.5, None]], "fisher_examples"), tmp_path)
    assert tuning.read(written).option == "fisher_examples"
    value = json.loads(written.read_text())
    del value["option"]
    path.write_text(json.dumps(value))
    assert tuning.read(path).option == "ewc_lambda"
    path.write_text(json.dumps({**value, "option": "alpha"}))
    with pytest.raises(ValueError, match="its option 'alpha' is no option of ewc"):
        tuning.read(path)
    path.write_text(json.dumps({**value, "surprise": 1}))
    with pytest.raises(ValueError, match="upgrade ogd to read it"):
        tuning.read(path)
    for wrong in ({"surprise": 1}, {"ratios": [{**asdict(speed.Ratio("a", 1, 1, 1, "b")), "surprise": 1}]}):
        path.write_text(json.dumps({"schema": 1, "ratios": [], **wrong}))
        with pytest.raises(ValueError, match=r"'surprise' .* ogd of an unknown version wrote it: upgrade ogd"):
            speed.read(path)


def test_an_option_that_came_later_leaves_older_records_valid(tiny, tmp_path, monkeypatch):
    old = records.write(make(tiny, method="sgd"), tmp_path)
    entry = catalogue.METHODS["sgd"]
    younger = catalogue.Option("spice", 3, "how hot", later=True)
    monkeypatch.setitem(catalogue.METHODS, "sgd", replace(entry, options=(younger,)))
    found = records.read(old)
    assert found.request.options == {"spice": 3}
    assert found.path(tmp_path) == old
    assert records.find(tmp_path, resolve("rotated", "sgd", tiny, tasks=2)) == {0: found}
    assert make(tiny, method="sgd", spice=4).path(tmp_path).parent != old.parent


def test_the_committed_records_are_valid():
    results = Path(__file__).parents[2] / "results"
    assert sum(len(packed.read(path)) for path in packed.paths(results)) > 2400
    assert speed.read(results / "speed.json")
    for path in (results / "tuning").rglob("*.json"):
        assert tuning.path_of(tuning.read(path), path.parent) == path


def test_a_tuning_of_other_settings_does_not_replace_the_former(tiny, tmp_path):
    request = resolve("rotated", "ewc", tiny)
    former = tuning.Tuning(request, [1.0, 2.0], [[0.5, None]])
    others = [
        tuning.Tuning(request, [1.0, 3.0], [[0.5, 0.6]]),
        tuning.Tuning(replace(request, epochs=7), [1.0, 2.0], [[0.5, 0.7]]),
        tuning.Tuning(request, [1.0, 2.0], [[0.5, 0.8]], "fisher_examples"),
    ]
    paths = [tuning.write(one, tmp_path) for one in [former, *others]]
    assert paths[0].name == "ewc-rotated.json"
    assert len(set(paths)) == 4
    assert [tuning.read(path) for path in paths] == [former, *others]
    more = replace(others[0], scores=[[0.5, 0.6], [0.1, 0.2]])
    assert tuning.write(more, tmp_path) == paths[1]
    assert tuning.read(paths[1]) == more


def test_what_is_only_in_a_journal_is_found_and_nothing_is_written(tiny, tmp_path):
    group = [make(tiny, run) for run in range(3)]
    records.write_all(group, tmp_path)
    folder = records.folder_of(group[0].request, tmp_path)
    (folder / "unit-0-1-2.json").write_text(json.dumps([records.record.to_json(record) for record in group]))
    (folder / "run-1.json").unlink()
    before = {path.name for path in folder.iterdir()}
    assert records.find(tmp_path, group[0].request) == dict(enumerate(group))
    assert {path.name for path in folder.iterdir()} == before


def test_a_record_in_another_request_s_place_is_refused(tiny, tmp_path):
    record = make(tiny)
    path = records.write(record, tmp_path)
    path.write_text(path.read_text().replace('"lr": 0.001', '"lr": 0.002'))
    with pytest.raises(ValueError, match="holds another setting's result") as caught:
        records.find(tmp_path, record.request)
    assert str(path) in str(caught.value)


def test_a_record_under_another_number_is_refused(tiny, tmp_path):
    record = make(tiny, run=3)
    path = records.write(record, tmp_path)
    path.rename(path.with_name("run-4.json"))
    with pytest.raises(ValueError, match=r"run-4.json holds another setting's result"):
        records.find(tmp_path, record.request)


@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("name", ["average_accuracy", "forgetting", "backward_transfer", "forward_transfer"])
def test_metrics_equal_their_definitions(name, tasks):
    a = np.random.default_rng(0).random((4, tasks + 1, tasks))
    expected = [naive_lab.metrics(one)[name] for one in a]
    np.testing.assert_allclose(getattr(records, name)(a), expected)


def test_metrics_of_a_single_task():
    a = [[0.1], [0.9]]
    assert records.average_accuracy(a) == 0.9
    assert all(np.isnan(f(a)) for f in (records.forgetting, records.backward_transfer, records.forward_transfer))


@pytest.mark.parametrize("shape", [(2, 2), (3,), (1, 0), (4, 2)])
def test_a_matrix_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match="a: an accuracy matrix is"):
        records.average_accuracy(np.zeros(shape))


def test_the_environment_names_versions():
    assert {"ogd", "commit", "python", "torch", "numpy"} <= set(environment())
    assert not any("/" in (value or "") for value in environment().values())


@pytest.mark.parametrize(("grid", "scores", "message"), [
    ([], [[]], "grid: must have a value"),
    ([1.0], [], "scores: must have a row"),
    ([1.0], [[0.5, 0.5]], r"scores\[0\]: must be a list of 1, not 2"),
    ([1.0], [[1.5]], r"scores\[0\]\[0\]: must be a number of at least 0 and at most 1, not 1.5"),
])  # fmt: skip
def test_a_damaged_tuning_says_so(tiny, tmp_path, grid, scores, message):
    path = tuning.write(tuning.Tuning(resolve("rotated", "ewc", tiny), [1.0], [[0.5]], "ewc_lambda"), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "grid": grid, "scores": scores}))
    with pytest.raises(ValueError, match=message):
        tuning.read(path)


def test_what_is_not_a_number_is_never_written(tiny, tmp_path):
    nan = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        speed.write([speed.Ratio("a", nan, 1, 1, "b")], tmp_path / "speed.json")
    with pytest.raises(ValueError, match="JSON"):
        tuning.write(tuning.Tuning(resolve("rotated", "ewc", tiny), [nan], [[0.5]], "ewc_lambda"), tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        records.write(replace(make(tiny), seconds=nan), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
