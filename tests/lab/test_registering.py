"""What may be registered as a method, a benchmark or an option, and what each message says."""

import json
from dataclasses import asdict, fields

import pytest

import ogd
from ogd.checks import ArgumentError
from ogd.lab import catalogue
from ogd.lab.catalogue import Look, Option, register_benchmark, register_method
from ogd.lab.catalogue.register import PALETTE, RESERVED
from ogd.lab.cli.arguments import benchmark_settings, method_options
from ogd.lab.cli.parser import parser
from ogd.lab.experiments import plan, resolve
from ogd.lab.records import Request
from ogd.lab.records.request import from_json


class Mine:
    def __init__(self, gain=1.0, per_task=5, name=""):
        self.gain = gain


def benchmark(tasks, dataset, noise=0.1, per_task=0):
    """Noise."""


def test_looks_labels_and_summaries():
    register_method("one", Mine)
    register_method("two", lambda: None, label="Two", summary="does it", look=Look("#123456"))
    one, two = catalogue.METHODS["one"], catalogue.METHODS["two"]
    assert (one.label, one.summary, one.look) == ("one", "", PALETTE[0])
    assert (two.label, two.summary, two.look.colour) == ("Two", "does it", "#123456")
    ours = {entry.look.colour for entry in catalogue.METHODS.values() if isinstance(entry.target, str)}
    assert len({look.colour for look in PALETTE}) == len({look.marker for look in PALETTE}) == len(PALETTE)
    assert not ours & {look.colour for look in PALETTE}
    register_method("one", Mine, label="again")  # as a notebook does
    assert catalogue.METHODS["one"].label == "again"
    with pytest.raises(ValueError, match="name: there is a method 'one' already"):
        register_method("one", list)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda: register_method("ogd", Mine), "name: there is a method 'ogd' already; choose another name"),
        (lambda: register_method("My Method", Mine), "name: a method name consists of small letters, digits, - and _"),
        (lambda: register_method("mine", 3), "method: 'mine' must be a class or a function, not 3"),
        (lambda: register_method("mine", Mine, options=[Option("pace", 1, "")]), "Mine takes no argument 'pace'"),
        (lambda: register_method("mine", benchmark), "options: benchmark needs 'tasks': describe it by an Option"),
        (lambda: register_method("mine", Mine, options=[Option("lr", 1.0, "")]), "'lr' is taken by something else"),
        (lambda: register_method("mine", Mine, options=[Option("storage", 1, "")]), "'storage' is taken by"),
        (lambda: register_method("mine", Mine, options=[Option("heads", 1, "")]), "'heads' is taken by something"),
        (lambda: register_method("mine", Mine, options=[Option("gain", True, "")]), "an int, float or str"),
        (lambda: register_method("mine", Mine, options=[Option("Gain", 1.0, "")]), "a name of small letters"),
        (lambda: register_method("mine", Mine, options=[Option("gain", -1.0, "")]), "gain: must be a number of at le"),
        (lambda: register_method("mine", Mine, options=[Option("gain", None, "", takes=int)]), "needs a default"),
        (
            lambda: register_method("mine", Mine, options=[Option("per_task", 0.5, "")]),
            "options: another 'per_task' takes int; rename this one",
        ),
        (
            lambda: register_method(
                "mine", Mine, options=[Option("gain", 1.0, "", grid=(1, 2)), Option("per_task", 1, "", grid=(1, 2))]
            ),
            "give a grid to one alone",
        ),
        (lambda: register_benchmark("split", benchmark), "name: there is a benchmark 'split' already"),
        (lambda: register_benchmark("mine", Mine), "settings: Mine takes no argument 'tasks'"),
        (lambda: register_benchmark("mine", benchmark, settings=[Option("a", 1, "")]), "takes no argument 'a'"),
        (lambda: register_benchmark("mine", benchmark, settings=[Option("per_task", 1, "")]), "is taken by something"),
        (
            lambda: register_benchmark("mine", benchmark, settings=[Option("noise", None, "", takes=float)]),
            "every setting needs a default, unless `rules` find one",
        ),
    ],
)
def test_what_cannot_be_registered_says_why(register, message):
    before = dict(catalogue.METHODS), dict(catalogue.BENCHMARKS)
    with pytest.raises(ValueError, match=message):
        register()
    assert before == (catalogue.METHODS, catalogue.BENCHMARKS)


def test_an_option_may_have_the_name_of_another_method_s(monkeypatch, capsys):
    register_method("mine", Mine, options=[Option("per_task", 7, "things to keep")])
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--help"])
    shown = capsys.readouterr().out
    assert "finished task (default: 200); mine: things to keep (default: 7)" in shown


class Halves(ogd.lab.benchmarks.Rules):
    """Task t has the first 1/2^t of the examples; `parts` says how many tasks there are."""

    def resolve(self, tasks, dataset, given):
        if tasks is not None and given.get("parts", tasks) != tasks:
            raise ArgumentError("parts", f"{given['parts']} parts do not make {tasks} tasks")
        parts = given.get("parts") or tasks or 2
        return {"tasks": parts, "parts": parts}

    def names(self, request):
        return tuple(f"1/{2 ** (t + 1)}" for t in range(request.tasks))

    def sizes(self, request, dataset):
        return tuple(len(dataset.train_labels) // 2 ** (t + 1) for t in range(request.tasks))


def test_rules_of_one_s_own(tiny, tmp_path):
    parts = Option("parts", None, "how many", takes=int)
    register_benchmark("halves", lambda tasks, dataset, parts: None, settings=[parts], rules=Halves)
    request = resolve("halves", "sgd", tiny, parts=3, batch_size=7)
    assert (request.tasks, request.settings, request.angles) == (3, {"parts": 3}, None)
    assert request.benchmark_arguments == {"tasks": 3, "seed": 0, "parts": 3}
    assert ogd.lab.benchmarks.task_names(request) == ("1/2", "1/4", "1/8")
    (units,) = plan.plan([(request, 1)], tiny, tmp_path)[1:]
    assert units[0].sizes == (30, 15, 7)
    assert from_json(json.loads(json.dumps(asdict(request)))) == request
    assert request.key != resolve("halves", "sgd", tiny, parts=2, batch_size=7).key
    with pytest.raises(ValueError, match="batch_size: 10 is above the 7 training examples of the smallest task"):
        resolve("halves", "sgd", tiny, parts=3)
    with pytest.raises(ArgumentError, match="parts: 3 parts do not make 2 tasks"):
        resolve("halves", "sgd", tiny, tasks=2, parts=3)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (Option("delay", 0, "", least=0), -1, "delay: must be at least 0, not -1"),
        (Option("delay", 5, ""), 0, "delay: must be at least 1, not 0"),
        (Option("delay", 5, ""), 1.5, "delay: must be a whole number, not 1.5"),
        (Option("gain", 1.0, "", least=-2), -3.0, "gain: must be a number of at least -2, not -3.0"),
        (Option("gain", 1.0, ""), float("nan"), "gain: must be a number of at least 0, not nan"),
        (Option("mood", "calm", ""), 3, "mood: must be text, not 3"),
        (Option("mood", "calm", "", ("calm", "wild")), "wlid", "mood: there is no 'wlid'; did you mean 'wild'"),
        (Option("steps", None, "", takes=int, several=True), [], "steps: give one value or more"),
        (Option("steps", None, "", takes=int, several=True), 3, "steps: give one value or more, not 3"),
        (Option("steps", None, "", takes=int, several=True), [1, 0], "steps: must be at least 1, not 0"),
    ],
)
def test_an_option_says_what_it_takes(option, value, message):
    with pytest.raises(ValueError, match=message):
        option.value(value)


def test_an_option_s_value():
    assert Option("gain", 1.0, "", tuned=(("split", 3.0),)).value(None, "split") == 3.0
    assert Option("gain", 1.0, "").value(None) == 1.0
    given = Option("gain", 1.0, "").value(2)
    assert (given, type(given)) == (2.0, float)
    assert Option("steps", None, "", takes=int, several=True).value([1, 2]) == (1, 2)


def test_names_that_mean_something_else_are_reserved():
    names = {field.name for field in fields(Request)}
    for command in ("run", "tune"):
        names |= vars(parser().parse_args([command, *(["ewc"] if command == "tune" else [])])).keys()
    assert names - benchmark_settings().keys() - method_options().keys() <= {*RESERVED}


def test_runs_that_take_gigabytes_are_not_trained_together(tiny, tmp_path):
    few, many = (resolve("rotated", "ogd", tiny, tasks=3, per_task=n, every=50) for n in (30, 5000))
    units = {n: plan.plan([(request, 4)], tiny, tmp_path)[1] for n, request in ((30, few), (5000, many))}
    assert [unit.group for unit in units[30]] == [(0, 1, 2, 3)]
    assert [unit.group for unit in units[5000]] == [(0, 1), (2, 3)]  # K of 10,000 directions
