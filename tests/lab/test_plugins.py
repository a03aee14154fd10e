"""Methods, benchmarks and experiments of a user's own: registered, loaded from files, known to every worker."""

import json
import subprocess
import sys

import pytest

import ogd
from ogd.lab import catalogue
from test_cli import SMALL

PLUGIN = '''
"""A method that keeps the data of the last tasks, and a benchmark that adds noise."""

import torch

from ogd.lab import benchmarks, methods


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
from ogd.lab.experiments import Experiment, Row, register

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
from ogd.lab.experiments import resolve, runner
from ogd.lab.experiments.backends import Backend


@ogd.lab.methods.register("mine")
class Mine(ogd.lab.methods.SGD):
    pass


if __name__ == "__main__":
    data, out, jobs = sys.argv[1:]
    dataset = ogd.lab.data.load(data)
    wanted = [(resolve("rotated", m, dataset, tasks=2, epochs=1, batch_size=7), 2) for m in ("mine", "sgd")]
    outcome = runner.run(wanted, dataset, Path(out), Backend(jobs=int(jobs)))
    print(outcome.failures, [len(found) for found in outcome.found])
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


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
            "from ogd.lab import methods\n@methods.register('sgd')\nclass Mine(methods.Method): pass",
            "mine.py, line 2: ArgumentError: name: there is a method 'sgd' already; choose another name",
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
    assert command("list", "--plugin").stderr == "ogd: --plugin: expected one argument; see ogd --help\n"
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


def test_a_plugin_is_loaded_once(plugin):
    ogd.lab.load_plugin(plugin)
    ogd.lab.load_plugin(str(plugin.parent / ".." / plugin.parent.name / plugin.name))
    assert catalogue.METHODS["last-few"].load().name == "last-few"
    assert catalogue.METHODS["last-few"].label == "Last few"
    assert str(plugin) in ogd.lab.plugins.loaded()
