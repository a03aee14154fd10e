"""Methods, benchmarks and experiments of a user's own: registered, loaded from files, known to every worker."""

import json
import subprocess
import sys
from dataclasses import asdict, fields

import pytest

import ogd
from ogd import catalogue
from ogd.catalogue import Look, Option, register_benchmark, register_method
from ogd.catalogue.register import PALETTE, RESERVED
from ogd.cli.arguments import benchmark_settings, method_options
from ogd.cli.parser import parser
from ogd.experiments import plan, resolve, runner
from ogd.records import Request
from ogd.records.request import from_json
from test_cli import SMALL

PLUGIN = '''
"""A method that keeps the data of the last tasks, and a benchmark that adds noise."""

import torch

from ogd import benchmarks, methods


@methods.register("last-few", label="Last few", options=[methods.Option("few", 2, "tasks whose data is kept")])
class LastFew(methods.Method):
    """Batches are drawn from the last few tasks."""

    def __init__(self, few=2):
        self.few = few

    def examples(self, seen):
        return seen[-self.few :]


@benchmarks.register("noisy", settings=[benchmarks.Option("noise", 0.5, "standard deviation of the noise")])
def noisy(tasks=2, *, noise=0.5, seed=0, dataset=None):
    """Every task has its own noise."""
    draws = torch.Generator().manual_seed(seed)
    made = []
    for task in benchmarks.rotated(tasks, dataset=dataset).tasks:
        shift = noise * torch.randn(task.train.x.shape[1:], generator=draws)
        made.append(tuple((part.x + shift, part.y) for part in (task.train, task.test)))
    return benchmarks.from_datasets(made)
'''

TABLE = """
from ogd.experiments import Experiment, Row, register

FAST = {"benchmark": "rotated", "tasks": 2, "epochs": 1, "batch_size": 2000, "hidden": (9,)}
register(
    Experiment(
        name="few",
        title="How many tasks to keep",
        value="final",
        columns=("task 1", "task 2"),
        rows=(Row("Last 2", "last-few", (FAST,)), Row("Last 1", "last-few", ({**FAST, "few": 1},))),
        runs=1,
    )
)
"""

SCRIPT = """
import sys
from pathlib import Path

import ogd
from ogd.experiments import resolve, runner
from ogd.experiments.backends import Backend


@ogd.methods.register("mine")
class Mine(ogd.methods.SGD):
    pass


if __name__ == "__main__":
    data, out, jobs = sys.argv[1:]
    dataset = ogd.data.load(data)
    wanted = [(resolve("rotated", m, dataset, tasks=2, epochs=1, batch_size=7), 2) for m in ("mine", "sgd")]
    outcome = runner.run(wanted, dataset, Path(out), Backend(jobs=int(jobs)))
    print(outcome.failures, [len(found) for found in outcome.found])
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def clean():
    """What a test registers in this process goes away with it."""
    before = [(entries, dict(entries)) for entries in (catalogue.METHODS, catalogue.BENCHMARKS)]
    yield
    for entries, kept in before:
        entries.clear()
        entries.update(kept)


def command(*arguments):
    """Run the real command line, in a process of its own."""
    line = [sys.executable, "-m", "ogd", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def accuracies(done):
    assert done.returncode == 0, done.stderr
    return {(r["request"]["method"], r["run"]): r["accuracy"] for r in json.loads(done.stdout)}


def test_a_plugin_s_method_and_benchmark_run_on_two_cores(plugin, tiny_folder, tmp_path):
    def run(out, *options):
        arguments = ["run", "--plugin", plugin, *SMALL, "--lr", 0.5, "--tasks", 3, "--data", tiny_folder, "--json"]
        return command(*arguments, "--out", tmp_path / out, *options)

    both = ["--method", "last-few", "sgd", "--benchmark", "noisy"]
    two = accuracies(run("two", *both, "--jobs", 2))
    assert len(two) == 4
    assert two == accuracies(run("one", *both, "--jobs", 1))
    assert {path.name.rsplit("-", 1)[0] for path in (tmp_path / "two").iterdir()} == {"noisy-last-few", "noisy-sgd"}
    noise = accuracies(run("two", *both, "--noise", 3))
    assert noise != two
    few = accuracies(run("two", *both, "--few", 3))
    assert few["last-few", 0] != two["last-few", 0]
    assert few["sgd", 0] == two["sgd", 0]


@pytest.mark.filterwarnings("default")
def test_a_plugin_on_a_dask_cluster(plugin, tiny_folder, tmp_path):
    pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    arguments = ["run", "--plugin", plugin, *SMALL, "--tasks", 2, "--data", tiny_folder, "--json"]
    arguments += ["--method", "last-few", "sgd", "--benchmark", "noisy", "--jobs", 2]
    here = accuracies(command(*arguments, "--out", tmp_path / "here"))
    assert accuracies(command(*arguments, "--out", tmp_path / "there", "--backend", "dask")) == here


def test_a_plugin_s_experiment_is_a_table_like_any_other(plugin, tmp_path):
    (tmp_path / "table.py").write_text(TABLE)
    plugins = ["--plugin", plugin, "--plugin", tmp_path / "table.py"]
    listed = command("list", *plugins).stdout
    assert "\n  few                Ours. How many tasks to keep\n" in listed
    done = command("reproduce", "few", *plugins, "--jobs", 2, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "How many tasks to keep" in done.stdout
    assert "Last 2" in done.stdout
    done = command("report", tmp_path / "out", *plugins)
    assert done.returncode == 0, done.stderr
    assert "How many tasks to keep" in (tmp_path / "out" / "report" / "index.html").read_text()


def test_what_a_plugin_has_is_listed_and_in_the_help(plugin):
    listed = command("list", "--plugin", plugin).stdout
    assert "last-few           Batches are drawn from the last few tasks.\n" in listed
    assert "noisy              Every task has its own noise.\n" in listed
    shown = " ".join(command("run", f"--plugin={plugin}", "--help").stdout.split())
    assert "--few N last-few: tasks whose data is kept (default: 2)" in shown
    assert "--noise X noisy: standard deviation of the noise (default: 0.5)" in shown
    assert "last-few" in command("run", "--plugin", plugin, "--method", "zzz").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--plugin: there is no file 'mine.py'; give a Python file"),
        ("import nothing_of_that_name", "mine.py, line 1: ModuleNotFoundError: No module named"),
        ("x = 1\n\nx = = 2", "mine.py, line 3: SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\nf()", "mine.py, line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)", "mine.py, line 2: SystemExit: 3"),
        (
            "from ogd import methods\n@methods.register('sgd')\nclass Mine(methods.Method): pass",
            "mine.py, line 2: ValueError: name: there is a method 'sgd' already; take another name",
        ),
    ],
)
@pytest.mark.parametrize("arguments", [["list"], ["run", "--help"]])
def test_a_plugin_that_cannot_be_loaded_is_one_line(tmp_path, monkeypatch, text, message, arguments):
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / "mine.py").write_text(text)
    done = command(*arguments, "--plugin", "mine.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("ogd: --plugin: ")
    assert message in done.stderr


def test_other_ways_to_name_a_plugin(plugin, tmp_path):
    assert command("list", "--plugin").stderr == "ogd: --plugin: expected one argument\n"
    assert "last-few" in command("list", "--plug", plugin).stdout
    (tmp_path / "plugin.txt").write_text("")
    assert "its name must end in .py" in command("list", "--plugin", tmp_path / "plugin.txt").stderr


def test_a_method_registered_in_a_script(tiny_folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(jobs):
        line = [sys.executable, str(script), str(tiny_folder), str(tmp_path / jobs), jobs]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout

    assert run("1") == "[] [2, 2]\n"
    told = run("2")
    assert "workers do not know the method 'mine': register it in a file of its own" in told
    assert "[0, 2]" in told


def test_a_plugin_is_loaded_once(plugin, clean):
    ogd.load_plugin(plugin)
    ogd.load_plugin(str(plugin.parent / ".." / plugin.parent.name / plugin.name))
    assert catalogue.METHODS["last-few"].load().name == "last-few"
    assert catalogue.METHODS["last-few"].label == "Last few"
    assert str(plugin) in ogd.plugins.loaded()


class Mine:
    def __init__(self, gain=1.0, per_task=5, name=""):
        self.gain = gain


def benchmark(tasks, dataset, noise=0.1, per_task=0):
    """Noise."""


def test_looks_labels_and_summaries(clean):
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
        (lambda: register_method("ogd", Mine), "name: there is a method 'ogd' already; take another name"),
        (lambda: register_method("My Method", Mine), "name: a method is named by small letters, digits, - and _"),
        (lambda: register_method("mine", 3), "method: 'mine' must be a class or a function, not 3"),
        (lambda: register_method("mine", Mine, options=[Option("pace", 1, "")]), "Mine takes no argument 'pace'"),
        (lambda: register_method("mine", benchmark), "options: benchmark needs 'tasks': describe it by an Option"),
        (lambda: register_method("mine", Mine, options=[Option("lr", 1.0, "")]), "'lr' is the name of something else"),
        (lambda: register_method("mine", Mine, options=[Option("storage", 1, "")]), "'storage' is the name of"),
        (lambda: register_method("mine", Mine, options=[Option("heads", 1, "")]), "'heads' is the name of something"),
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
        (lambda: register_benchmark("mine", benchmark, settings=[Option("per_task", 1, "")]), "the name of something"),
        (
            lambda: register_benchmark("mine", benchmark, settings=[Option("noise", None, "", takes=float)]),
            "every setting needs a default, unless `rules` find one",
        ),
    ],
)
def test_what_cannot_be_registered_says_why(clean, register, message):
    before = dict(catalogue.METHODS), dict(catalogue.BENCHMARKS)
    with pytest.raises(ValueError, match=message):
        register()
    assert before == (catalogue.METHODS, catalogue.BENCHMARKS)


def test_an_option_may_have_the_name_of_another_method_s(clean, monkeypatch, capsys):
    register_method("mine", Mine, options=[Option("per_task", 7, "things to keep")])
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--help"])
    shown = capsys.readouterr().out
    assert "finished task (default: 200); mine: things to keep (default: 7)" in shown


class Halves(ogd.benchmarks.Rules):
    """Task t has the first 1/2^t of the examples; `parts` says how many tasks there are."""

    def resolve(self, tasks, dataset, given):
        if tasks is not None and given.get("parts", tasks) != tasks:
            raise ValueError(f"parts: {given['parts']} parts do not make {tasks} tasks")
        parts = given.get("parts") or tasks or 2
        return {"tasks": parts, "parts": parts}

    def names(self, request):
        return tuple(f"1/{2 ** (t + 1)}" for t in range(request.tasks))

    def sizes(self, request, dataset):
        return tuple(len(dataset.train_labels) // 2 ** (t + 1) for t in range(request.tasks))


def test_rules_of_one_s_own(clean, tiny, tmp_path):
    parts = Option("parts", None, "how many", takes=int)
    register_benchmark("halves", lambda tasks, dataset, parts: None, settings=[parts], rules=Halves)
    request = resolve("halves", "sgd", tiny, parts=3)
    assert (request.tasks, request.settings, request.angles) == (3, {"parts": 3}, None)
    assert request.benchmark_arguments == {"tasks": 3, "seed": 0, "parts": 3}
    assert ogd.benchmarks.task_names(request) == ("1/2", "1/4", "1/8")
    (units,) = plan.plan([(request, 1)], tiny, tmp_path)[1:]
    assert units[0].sizes == (30, 15, 7)
    assert from_json(json.loads(json.dumps(asdict(request)))) == request
    assert request.key != resolve("halves", "sgd", tiny, parts=2).key
    with pytest.raises(ValueError, match="batch_size: 10 is above the 7 training examples of the smallest task"):
        runner.check([request], 1, tiny)
    with pytest.raises(ValueError, match="parts: 3 parts do not make 2 tasks"):
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
