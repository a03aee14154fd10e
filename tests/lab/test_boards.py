"""The leaderboards: their protocols, and what others published beside ours."""

import csv
import io
from dataclasses import replace

import pytest

from ogd.lab.experiments import EXPERIMENTS, Reference, quick
from ogd.lab.experiments.experiment import choose
from ogd.lab.experiments.leaderboards import BOARDS, BUFFERS
from ogd.lab.experiments.runs import find_runs, requests_of
from ogd.lab.records import tuning
from ogd.lab.reporting import compare
from ogd.lab.reporting.formats import latex, table, tidy
from test_cli import SMALL, run

METHODS = {"sgd", "ewc", "agem", "er", "der", "gpm", "ogd"}
PROTOCOLS = {  # tasks, optimizer, batch, epochs, biases, further settings of the benchmark
    "board-a": (10, "adam", 128, 10, True, {}),
    "board-b": (10, "sgd", 10, 5, False, {"scale": "standard", "left_out": 6000}),
    "board-c-permuted": (20, "sgd", 128, 1, True, {}),
    "board-c-rotated": (20, "sgd", 128, 1, True, {}),
}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_every_row_of_a_board_keeps_to_its_protocol(board, mnist):
    assert {row.method for row in board.rows} - {"mtl", "rehearsal"} == METHODS
    for row in board.rows:
        for r in requests_of(row, mnist):
            asked = (r.tasks, r.optimizer, r.batch_size, r.epochs, r.biases, r.settings)
            assert asked == PROTOCOLS[board.name]
            assert r.hidden == (100, 100)
    for row in quick(board).rows:
        assert len(requests_of(row, mnist)) == len(board.columns)


@pytest.mark.parametrize("name", ["board-c-permuted", "board-c-rotated"])
def test_buffers_are_of_a_fixed_size(name, mnist):
    for row in EXPERIMENTS[name].rows:
        options = [request.options for request in requests_of(row, mnist)]
        if row.method in ("agem", "er", "der"):
            assert tuple(one["in_total"] for one in options) == BUFFERS
        if row.method == "ogd":
            assert [one["per_task"] for one in options] == [10, 25, 100]  # at most


def test_boards_run_where_they_are_named():
    assert not {e.name for e in choose(["all"], quickly=False, runs=None)} & set(PROTOCOLS)
    assert [e.name for e in choose(["board-a"], quickly=True, runs=None)] == ["board-a"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_published_lines_stand_beside_ours_with_their_source(board, mnist):
    comparison = compare(find_runs(board, mnist, lambda request, runs: ()))
    assert not comparison.published  # they judge nothing
    text = table(comparison).markdown()
    cells = {row["row"]: row for row in csv.DictReader(io.StringIO(tidy(comparison))) if not row["method"]}
    for reference in board.references:
        assert reference.source in text
        assert f"| {reference.label} | published | {reference.cells[0]} |" in text
        assert float(cells[reference.label]["paper_mean"]) == float(reference.cells[0].split()[0])
    assert latex(comparison).count(" & published & ") == len(board.references)


def test_a_reference_needs_a_source_and_a_cell_per_column():
    for wrong in (Reference("x", ("1", "2"), "somewhere"), Reference("x", ("1",), "")):
        with pytest.raises(ValueError, match="references: 'x' needs 1 cells and a source"):
            replace(BOARDS[0], references=(wrong,))


def test_tune_takes_what_a_board_leaves_open(tiny_folder, tmp_path, capsys):
    arguments = ["tune", "der", *SMALL, "--tasks", 2, "--benchmark", "permuted", "--optimizer", "adam", "--lr", 0.01]
    arguments += ["--replay-batch", 5, "--per-task", 6, "--replay-every", 2, "--no-biases", "--scale", "standard"]
    arguments += ["--left-out", 7, "--grid", 0.5, 2]
    code, out, err = run(capsys, *arguments, "--data", tiny_folder, "--out", tmp_path)
    assert code == 0, err
    request = tuning.read(tmp_path / "der-permuted.json").request
    assert (request.options["replay_batch"], request.options["per_task"], request.options["replay_every"]) == (5, 6, 2)
    assert (request.biases, request.settings) == (False, {"scale": "standard", "left_out": 7})
    assert "chosen: --alpha" in out
    wrong = ["tune", "ewc", "--replay-batch", 5, "--data", tiny_folder, "--out", tmp_path]
    assert "--replay-batch: is for er and der and rehearsal, not for ewc" in run(capsys, *wrong)[2]
