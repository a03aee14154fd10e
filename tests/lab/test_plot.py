"""`ogd.lab.plot` draws what the accuracy matrices say, whatever they come in."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ogd
from made_records import keep, made
from ogd.lab import plot
from ogd.lab.catalogue import METHODS
from ogd.lab.experiments import resolve
from ogd.lab.records import average_accuracy

A = np.array([[0.1, 0.1, 0.1], [0.9, 0.2, 0.1], [0.7, 0.8, 0.1], [0.5, 0.6, 0.95]])


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def lines(axes):
    return [line.get_ydata() for line in axes.lines]


def test_it_is_reached_from_the_package():
    assert ogd.lab.plot is plot


def test_a_task_is_drawn_from_the_moment_it_is_learned():
    drawn = lines(plot.tasks(A))
    nan = np.nan
    np.testing.assert_allclose(drawn, 100 * np.array([[0.9, 0.7, 0.5], [nan, 0.8, 0.6], [nan, nan, 0.95]]))


def test_the_spread_is_that_of_the_runs():
    two = np.stack([A, A + 0.04])
    axes = plot.tasks(two)
    np.testing.assert_allclose(lines(axes)[0], [92, 72, 52])
    band = axes.collections[0].get_datalim(axes.transData)
    assert band.ymax == pytest.approx(92 + 4 / np.sqrt(2))
    assert not plot.tasks(A).collections


def test_methods_are_compared_over_the_tasks_so_far_or_on_one():
    better = A.copy()
    better[3] = 0.9
    average = lines(plot.methods({"sgd": A, "mine": better}))
    np.testing.assert_allclose(average, [[90, 75, 100 * average_accuracy(A)], [90, 75, 90]])
    np.testing.assert_allclose(lines(plot.methods({"sgd": A}, task=2)), [[np.nan, 80, 60]])
    axes = plot.methods({"sgd": A, "ogd": better})
    assert [line.get_color() for line in axes.lines] == [METHODS[m].look.colour for m in ("sgd", "ogd")]


def test_runs_come_as_matrices_records_folders_and_results(mnist, tmp_path):
    request = resolve("rotated", "sgd", mnist, tasks=3)
    records = [made(request, run) for run in range(2)]
    for record in records:
        keep(record, tmp_path)
    stacked = np.array([record.accuracy for record in records])

    class Result:
        accuracy = stacked

    expected = lines(plot.tasks(stacked))
    for runs in (records, records[0].path(tmp_path).parent, str(records[0].path(tmp_path).parent), Result()):
        np.testing.assert_allclose(lines(plot.tasks(runs)), expected)
    np.testing.assert_allclose(lines(plot.tasks(records[0])), lines(plot.tasks(stacked[0])))


def test_the_given_axes_are_drawn_on_and_returned():
    _, given = plt.subplots(1, 3)
    assert plot.tasks(A, given[0]) is given[0]
    assert plot.matrix(A, given[1]) is given[1]
    assert plot.methods({"a": A}, ax=given[2]) is given[2]
    assert [text.get_text() for text in given[1].texts][:4] == ["90.0", "20.0", "10.0", "70.0"]
    assert len(given[1].patches) == 6  # what is learned has a colour


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plot.tasks(A[1:]),
            r"runs: an accuracy matrix is \(1 \+ tasks, tasks\), one or several, not \(1, 3, 3\)",
        ),
        (lambda: plot.tasks([]), "runs: an accuracy matrix"),
        (lambda: plot.matrix("nowhere"), "runs: there are no records run-"),
        (lambda: plot.methods({"a": A}, task=4), "task: there are tasks 1 to 3, not 4"),
        (lambda: plot.methods({"a": A, "b": A[:3, :2]}), r"same number of tasks, not \[2, 3\]"),
        (lambda: plot.methods(A), "runs must be a dictionary"),
    ],
)
def test_what_cannot_be_drawn_is_said(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
