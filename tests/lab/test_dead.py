"""Dead runs, whose outputs no longer depend on the input: found after a training, kept in records, told."""

import csv
import io
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from made_records import keep, made, make
from ogd.lab import benchmarks, cli, methods, plot, records, training
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, quick, resolve
from ogd.lab.experiments.experiment import Cell
from ogd.lab.experiments.runs import requests_of
from ogd.lab.models import StackedMLP, StackedModules
from ogd.lab.records.record import to_json
from ogd.lab.reporting import formats, overview
from ogd.lab.reporting.accuracy_plots import heat_maps
from ogd.lab.reporting.cells import Entry, Tally
from ogd.lab.reporting.index import index
from ogd.lab.reporting.page_opening import facts, opening
from ogd.lab.reporting.report import comparisons
from ogd.lab.reporting.tables import DEAD, mean_std, sparklines
from ogd.lab.training.evaluation import find_dead
from small_lab import fit
from small_lab import make as make_benchmark
from test_cli import SMALL
from test_cli import run as run_cli

OUTPUTS = 4


def tasks_of(*sets):
    return benchmarks.from_datasets([(one, one) for one in sets]).tasks


def random_set(n=40, labels=OUTPUTS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator), torch.arange(n) % labels


def network(kind):
    """Return a random network of which the hidden layer is changed."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh() if kind == "saturated" else nn.ReLU(), nn.Linear(8, OUTPUTS))
    with torch.no_grad():
        if kind in ("off", "nearly off"):
            module[0].weight *= 0.1
            module[0].bias.fill_(-10.0)
        if kind == "nearly off":  # a few inputs reach one unit
            module[0].weight[3] *= 100
        if kind == "saturated":
            module[0].bias.fill_(1e4)
        if kind == "zero":
            module[2].weight.zero_()
            module[2].bias.zero_()
        if kind == "one class":
            module[2].bias[1] = 30.0
        if kind == "diverged":
            module[2].weight[0, 0] = torch.nan
    return module


def slow_dead(module, tasks):
    """Compare the outputs of every input with those of every other, in float64."""
    verdicts = []
    for task in tasks:
        if len(set(task.test.y.tolist())) < 2:
            continue
        z = module.double()(task.test.x.double()).detach()
        equal = (z[:, None] - z).abs().amax(-1) <= 1e-6 * z.abs().max()
        verdicts.append(bool(equal.float().mean(1).max() > 0.5))
    return bool(verdicts) and all(verdicts)


@pytest.mark.parametrize(
    ("kind", "dead"),
    [("off", True), ("nearly off", True), ("saturated", True), ("zero", True), ("one class", False),
     ("as drawn", False), ("diverged", False)],
)  # fmt: skip
def test_a_network_whose_outputs_do_not_depend_on_the_input_is_dead(kind, dead):
    tasks = tasks_of(random_set(), random_set(seed=1), random_set(labels=1))
    model = StackedModules([network(kind), network("as drawn"), network("off")])
    assert find_dead(model, tasks, OUTPUTS).tolist() == [dead, False, True]
    assert slow_dead(network(kind), tasks) == dead
    if kind == "nearly off":
        assert len(network(kind)(tasks[0].test.x).unique(dim=0)) > 1
    if kind == "one class":
        assert len(network(kind)(tasks[0].test.x).argmax(1).unique()) == 1


def test_every_task_that_can_show_it_must():
    """Inputs below −5 in each number switch the network off, so that a task of them alone has the same outputs."""
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, OUTPUTS))
    with torch.no_grad():
        module[0].weight.abs_()
        module[0].bias.zero_()
    x, y = random_set()
    off, on = (-x.abs() - 5, y), (x.abs(), y)
    model = StackedModules([module])
    for sets, dead in [((off,), True), ((off, off), True), ((off, on), False), ((on, off), False)]:
        assert find_dead(model, tasks_of(*sets), OUTPUTS).tolist() == [dead]
    one_label, one_input = (off[0], y * 0), (off[0][:1].expand(40, -1), y)
    for sets in ((one_label,), (one_input,), (one_label, on), (one_label, one_input)):
        assert find_dead(model, tasks_of(*sets), OUTPUTS).tolist() == [False]


def test_inputs_that_are_there_many_times_kill_no_run():
    x, y = random_set()
    often = (torch.cat([x[:1].expand(200, -1), x]), torch.cat([torch.zeros(200, dtype=torch.long), y]))
    two = (x[:2], y[:2])
    model = StackedModules([network("as drawn")])
    assert find_dead(model, tasks_of(often), OUTPUTS).tolist() == [False]
    assert find_dead(model, tasks_of(two), OUTPUTS).tolist() == [False]


def test_only_the_logits_of_a_task_s_head_count():
    module = network("as drawn")
    with torch.no_grad():
        module[2].weight[:2].zero_()
    model, (task,) = StackedModules([module]), tasks_of(random_set(labels=2))
    for classes, dead in [((0, 1), True), ((2, 3), False), (None, False)]:
        assert find_dead(model, [replace(task, classes=classes)], OUTPUTS).tolist() == [dead]


def test_a_training_that_dies_is_told_and_one_at_chance_is_not(tiny):
    """All six end at chance on both tasks, and three of them still have logits that differ."""
    with pytest.warns(UserWarning, match=r"^runs 0, 3, 5 of sgd on split ended dead: .* lower lr, which is 0\.5,"):
        model, result = fit(make_benchmark("split", tiny), runs=6, lr=0.5, epochs=5)
    np.testing.assert_allclose(result.final_accuracy, 0.2)
    assert result.dead.tolist() == [True, False, False, True, False, True]
    assert model is result.model
    der = methods.DER(per_task=6, replay_batch=20, alpha=1.0, replay_every=10)
    with pytest.warns(UserWarning, match=r"^run 0 of der \(α = 1\) on rotated ended dead"):
        fit(make_benchmark("rotated", tiny), der, runs=1, lr=1.0, epochs=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(make_benchmark("split", tiny), runs=6, lr=0.5, epochs=5, check=False)
        fit(make_benchmark("split", tiny), runs=3, lr=0.001, epochs=1)


def test_one_softmax_that_predicts_the_newest_classes_is_alive():
    sets = [(x, y + 2 * t) for t in range(2) for x, y in [random_set(labels=2, seed=t)]]
    benchmark = benchmarks.from_datasets([(one, one) for one in sets])
    result = training.train(benchmark, StackedMLP((6, 20, OUTPUTS)), lr=0.1, epochs=20, progress=False)
    assert result.accuracy[0, -1, 0] < 0.1
    assert result.dead.tolist() == [False]


def test_a_record_says_it_only_if_it_is_so(tiny, tmp_path):
    alive = made(resolve("rotated", "sgd", tiny, tasks=2), 0)
    dead = replace(alive, run=1, dead=True)
    assert "dead" not in to_json(alive)
    assert to_json(dead) == {**to_json(alive), "run": 1, "dead": True}
    for record in (alive, dead):
        assert records.read(records.write(record, tmp_path)) == record
    records.pack(tmp_path, lambda _: "mine")
    assert records.find(tmp_path, alive.request) == {0: alive, 1: dead}
    assert "2, 1 dead" in index(tmp_path)
    path = records.write(dead, tmp_path / "other")
    path.write_text(json.dumps({**to_json(dead), "dead": 1}))
    with pytest.raises(ValueError, match="dead: must be true or false, not 1"):
        records.read(path)


def test_run_says_it(tiny_folder, tmp_path, capsys):
    command = ["run", "--method", "sgd", "--benchmark", "split", "--partition", "01234/56789", *SMALL, "--tasks", 2]
    command += ["--runs", 2, "--data", tiny_folder, "--out", tmp_path, "--lr"]
    with pytest.warns(UserWarning, match="ended dead"):
        code, out, _ = run_cli(capsys, *command, 20)
    assert code == 0
    assert "sgd dead dead dead dead" in " ".join(out.split())
    assert "A dead run gives the same outputs" in out
    assert run_cli(capsys, *command, 20)[1] == out  # from the records
    assert [record["dead"] for record in json.loads(run_cli(capsys, *command, 20, "--json")[1])] == [True, True]
    _, healthy, _ = run_cli(capsys, *command, 0.01)
    assert "dead" not in healthy
    assert not any("dead" in record for record in json.loads(run_cli(capsys, *command, 0.01, "--json")[1]))


def test_tune_does_not_choose_what_kills_runs(small_folder, tmp_path, capsys):
    command = ["tune", "der", "--benchmark", "rotated", "--tasks", 2, "--epochs", 1, "--hidden", 20, "--lr", 0.05]
    command += ["--grid", 0.5, 1000, "--runs", 2, "--data", small_folder, "--out", tmp_path]
    code, out, _ = run_cli(capsys, *command)
    assert code == 0
    scores = json.loads((tmp_path / "der-rotated.json").read_text())["scores"]
    assert [[score is None for score in row] for row in scores] == [[False, True]] * 2
    assert "diverged or dead" in out
    assert "chosen: --alpha 0.5" in out


def test_cells_say_how_many_runs_are_dead(mnist):
    assert mean_std([98.0, 98.0, 50.0], dead=1) == "82.0 ± 27.7, 1 of 3 dead"
    assert (mean_std([50.0], dead=1), mean_std([np.nan], dead=1)) == ("dead", "–")
    request = resolve("rotated", "der", mnist, tasks=2)
    runs = [replace(made(request, run), dead=run == 0) for run in range(3)]
    (line,) = overview([runs]).groups[0]
    assert [cell.partition(", ")[2] for cell in line[1:]] == ["1 of 3 dead"] * 4
    assert sparklines([runs]).groups[0][0][0] == "der (1 of 3 dead)"
    (line,) = overview([[replace(record, dead=True) for record in runs]]).groups[0]
    assert line == ("der", *["dead"] * 4)
    assert "dead" not in overview([[replace(record, dead=False) for record in runs]]).caption
    with pytest.warns(UserWarning, match="1 of 3 runs are dead"):
        plot.tasks(runs)


def test_a_setting_that_is_dead_has_no_mean_and_falls_short():
    dead, half = Entry((50.0, 50.0), 2, Cell(50.0, 1.0), dead=2), Entry((50.0, 90.0), 2, Cell(90.0, 1.0), dead=1)
    assert np.isnan([dead.mean, dead.difference]).all()
    assert (dead.mark.name, formats.ours(dead), formats.difference(dead)) == ("short", "dead", "–")
    assert replace(dead, published=Cell(50.0, np.nan)).mark is None
    assert formats.ours(replace(half, wanted=3)) == "70.0 ± 28.3, 1 of 2 dead (2 of 3 runs)"
    tally = Tally((dead, half, Entry((), 2, Cell(50.0, 1.0))))
    assert (tally.dead, tally.missing, tally.distance, tally.counts["short"]) == (2, 1, 20.0, 1)


@pytest.fixture(scope="module")
def some_dead(tmp_path_factory):
    """A table, bars, lines and a setting of one's own, where OGD has a dead run and SGD none that lives."""
    folder = make(tmp_path_factory.mktemp("dead"), ["rotated", "partitions", "lambda"])

    for name in ("rotated", "partitions", "lambda"):
        for row in quick(EXPERIMENTS[name]).rows:
            for number, request in enumerate(requests_of(row, load("mnist"))):
                lost = {"sgd": 2, "ogd": 1}.get(row.method, 2 if name == "lambda" and number == 1 else 0)
                for run in range(lost):
                    keep(replace(made(request, run), dead=True), folder)
    for run in range(2):
        keep(replace(made(resolve("permuted", "er", load("mnist"), tasks=4, lr=0.5), run), dead=run == 1), folder)
    return folder


def test_every_form_of_a_table_says_it(some_dead):
    table = next(one for one in comparisons(some_dead) if one.experiment.name == "rotated")
    shown = {line.label: formats.ours(line.entries[0]) for line in table.lines}
    assert shown["SGD"] == "dead"
    assert shown["OGD"].endswith(", 1 of 2 dead")
    assert "dead" not in shown["MTL"]
    assert table.dead_note.startswith("Dead runs: OGD: 1 of 2. ")
    assert table.dead_note.endswith(f"SGD: 2 of 2. {DEAD}")
    for text in (formats.table(table).markdown(), formats.latex(table)):
        assert "1 of 2 dead" in text
        assert DEAD in text
    cells = list(csv.DictReader(io.StringIO(formats.tidy(table))))
    assert {cell["dead"] for cell in cells if cell["row"] == "SGD"} == {"2"}
    assert {cell["ours_mean"] for cell in cells if cell["row"] == "SGD"} == {""}
    assert {cell["dead"] for cell in cells if cell["row"] == "MTL"} == {"0"}
    assert {axes.get_title("left") for axes in heat_maps(table.found).axes} >= {"SGD (2 of 2 dead)", "MTL"}


def test_the_page_says_it(some_dead, capsys):
    cli.main(["report", str(some_dead)])
    html = (some_dead / "report" / "index.html").read_text(encoding="utf-8")
    assert html.count(DEAD) >= 4  # of three experiments, and of other runs
    own = html[html.index('id="table-own"') :]
    assert own[: own.index("</table>")].count(", 1 of 2 dead") == 3
    for name in ("partitions", "lambda"):
        begin = html.index(f'<div class="block" id="{name}">')
        caption = html[begin : html.index("</figcaption>", begin)]
        assert "Dead runs: " in caption[caption.index("<figcaption>") :]
    assert "Dead runs: Permuted MNIST: 2 of 2 at λ = 10." in html
    found = opening(comparisons(some_dead), [])
    labels = [trace.label for trace in found.traces]
    assert "OGD (1 of 2 dead)" in labels
    assert not any("SGD" in label for label in labels)
    assert any("(1 of 2 dead)" in fact.words for fact in facts(Tally(()), found))
