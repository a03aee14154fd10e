import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, quick, register, resolve
from ogd.lab.experiments.experiment import choose
from ogd.lab.experiments.paper import COMPARED, REPLAY
from ogd.lab.experiments.runs import ExperimentRuns, RowRuns
from ogd.lab.records import RunRecord
from ogd.lab.records.speed import Ratio
from ogd.lab.reporting import compare, overview, speeds, table


def record(request, run, final):
    accuracy = [[0.1] * request.tasks] * request.tasks + [final]
    return RunRecord(request, run, accuracy, None, 1.0, 2, {})


def laid_out(experiment, found):
    """Lay out an experiment of one row whose settings have these runs."""
    requests = tuple(runs[0].request if runs else resolve("split", "sgd", load()) for runs in found)
    return table(
        compare(ExperimentRuns(experiment, (RowRuns(experiment.rows[0], requests, tuple(map(tuple, found))),)))
    )


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_experiment_is_complete(experiment, mnist):
    if experiment.parts or experiment.named:
        return
    own = {"variants-rotated": {"ogd"}, "variants-permuted": {"ogd"}, "lambda": {"ewc"}, "every": {"ogd", "sgd"}}
    first_tables = {f"Table {n}" for n in (1, 2, 3)}
    replay = set(REPLAY) if experiment.where in first_tables else set()
    assert {row.method for row in experiment.rows} == own.get(experiment.name, {*COMPARED, *replay})
    for row in experiment.rows:
        expected = 1 if experiment.value == "final" else len(experiment.columns)
        assert len(row.settings) == expected
        ours = row.label == "EWC, tuned λ" or row.method in REPLAY or experiment.where == "Ours"
        has_numbers = experiment.kind == "table" and not ours
        assert len(row.published) == (len(experiment.columns) if has_numbers else 0)
        for setting in row.settings:
            if "per_task" not in setting:
                assert resolve(method=row.method, dataset=mnist, **setting).tasks in (2, 3, 5)


def test_the_published_numbers_are_the_paper_s():
    cells = [cell for e in EXPERIMENTS.values() for row in e.rows for cell in row.published]
    assert len(cells) == 6 * 25 + 2 * 9
    # sums over all cells of the paper's source, taken with another program
    assert round(sum(cell.mean for cell in cells), 1) == 15503.2
    assert round(sum(cell.std for cell in cells), 1) == 243.1


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["table1", "figure3"], ["permuted", "angles"]),
        (["Table 4"], ["variants-rotated", "variants-permuted"]),
        (["rotated", "table2"], ["rotated"]),
    ],
)
def test_experiments_are_chosen_by_the_paper_s_numbers(asked, found):
    assert [experiment.name for experiment in choose(asked, quickly=False, runs=None)] == found


def test_all_is_everything_and_the_figures_are_the_paper_s():
    chosen = choose(["all"], quickly=False, runs=None)
    assert [e.name for e in chosen] == [name for name, e in EXPERIMENTS.items() if name != "init" and not e.named]
    assert choose(["init", "all"], quickly=False, runs=None)[0].name == "init"
    runs = {e.name: e.runs for e in chosen if e.kind == "figure"}
    assert runs == {"curves": 10, "angles": 3, "partitions": 10, "epochs": 3, "lambda": 5}
    assert EXPERIMENTS["epochs"].columns == ("20 epochs", "40 epochs", "80 epochs", "120 epochs")
    assert set(EXPERIMENTS["angles"].columns) >= {f"{angle}°" for angle in range(10, 100, 10)} | {"180°"}
    assert [row.settings[0].get("curve_every") for row in EXPERIMENTS["curves"].rows] == [600] * 5
    partitions = [EXPERIMENTS[f"split-{n}"].rows[0].settings[0]["partition"] for n in (2, 3, 4)]
    assert partitions == ["random:1", "random:2", "random:3"]


@pytest.mark.parametrize("name", ["rotated", "all"])
def test_a_name_that_is_taken_is_refused(name):
    before = dict(EXPERIMENTS)
    with pytest.raises(ValueError, match=f"name: '{name}' is taken; choose another"):
        register(replace(EXPERIMENTS["rotated"], name=name))
    assert before == EXPERIMENTS


def test_quick_keeps_learning_rate_times_steps():
    for experiment in EXPERIMENTS.values():
        for row, fast in zip(experiment.rows, quick(experiment).rows, strict=True):
            for slow, setting in zip(row.settings, fast.settings, strict=experiment.name != "lambda"):
                if setting.get("optimizer") == "adam":
                    assert (setting["epochs"], setting["lr"]) == (slow["epochs"] / 10, slow["lr"])
                    continue
                assert setting["epochs"] * setting["lr"] == pytest.approx(slow.get("epochs", 5) * slow.get("lr", 1e-3))
    assert quick(EXPERIMENTS["rotated"]).runs == 2
    assert quick(EXPERIMENTS["lambda"]).columns == ("λ = 1", "λ = 10", "λ = 30", "λ = 100")
    assert quick(EXPERIMENTS["epochs"]).profile == "quick profile: 1/10 of the epochs at 10 × the lr"


def test_a_mean_is_never_of_fewer_runs_than_asked_for(mnist):
    experiment = replace(EXPERIMENTS["partitions"], rows=EXPERIMENTS["partitions"].rows[-1:], runs=2)
    request = resolve("split", "sgd", mnist, tasks=2)
    found = [[record(request, r, [0.9, 0.5]) for r in range(runs)] for runs in (2, 1, 0, 2, 2)]
    shown = laid_out(experiment, found)
    assert shown.groups[0][0] == ("SGD", "ours", "90.0 ± 0.0", "90.0 (1 of 2 runs)", "–", "90.0 ± 0.0", "90.0 ± 0.0")
    assert "Incomplete. SGD: 1 of 2 runs at" in shown.caption
    experiment = replace(EXPERIMENTS["split"], rows=EXPERIMENTS["split"].rows[-1:], runs=2)
    shown = laid_out(experiment, [[]])
    assert shown.groups[0][0] == ("SGD", "ours", *"––––––")
    assert shown.groups[0][2] == ("", "difference", *"––––––")


def test_comparison_sets_ours_beside_the_paper_s(mnist):
    experiment = replace(quick(EXPERIMENTS["rotated"]), rows=EXPERIMENTS["rotated"].rows[-1:])
    request = resolve("rotated", "sgd", mnist)
    runs = [record(request, r, [0.60 + 0.02 * r, 0.7, 0.8, 0.9, 0.95]) for r in range(2)]
    shown = laid_out(experiment, [runs])
    ours, paper, difference = shown.groups[0]
    assert ours[:3] == ("SGD", "ours", "61.0 ± 1.4")
    assert paper[2] == "62.9 ± 1.0"
    assert difference[2:4] == ("-1.9 ≈", "-6.5 ▽")
    assert difference[-1] == f"{100 * np.mean([0.61, 0.7, 0.8, 0.9, 0.95]) - 83.44:+.1f}"
    assert "quick profile" in shown.caption
    assert "2 runs" in shown.caption
    assert shown.markdown().splitlines()[4].startswith("| SGD | ours | 61.0 ± 1.4 | 70.0 ± 0.0 |")


def test_a_figure_has_one_request_a_column(mnist):
    experiment = replace(EXPERIMENTS["partitions"], rows=EXPERIMENTS["partitions"].rows[-1:], runs=1)
    request = resolve("split", "sgd", mnist, tasks=2)
    found = [[record(request, 0, [0.9 + c / 100, 0.5])] for c in range(5)]
    (ours,) = laid_out(experiment, found).groups[0]
    assert ours == ("SGD", "ours", "90.0", "91.0", "92.0", "93.0", "94.0")


@pytest.mark.parametrize(("width", "stacked"), [(200, False), (80, True), (40, True)])
def test_no_figure_is_cut_in_a_narrow_terminal(mnist, monkeypatch, capsys, width, stacked):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    request = resolve("rotated", "sgd", mnist)
    runs = [record(request, r, [0.60 + 0.02 * r] * 5) for r in range(2)]
    overview([runs]).show()
    out = capsys.readouterr().out
    assert "…" not in out
    assert out.count("61.0") == 6
    assert ("61.0 ± 1.4" not in out) == stacked


def test_a_pipe_gets_every_column(mnist, capsys):
    request = resolve("rotated", "sgd", mnist, tasks=40)
    overview([[record(request, r, [0.60 + 0.02 * r] * 40) for r in range(2)]]).show()
    assert capsys.readouterr().out.count("61.0 ± 1.4") == 41


def test_overview_and_speeds(mnist, capsys):
    request = resolve("rotated", "sgd", mnist, tasks=2)
    overview([[record(request, 0, [0.5, 0.75])]]).show()
    assert "62.5" in capsys.readouterr().out
    speeds([Ratio("k", 5.0, 4.0, 6.0, "m")]).show()
    assert "5.00 ×" in capsys.readouterr().out


def test_reporting_does_not_import_torch():
    script = "import sys, ogd.lab.reporting, ogd.lab.experiments.runner; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
