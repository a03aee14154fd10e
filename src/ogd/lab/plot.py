"""Drawings for notebooks: each takes runs, draws on matplotlib axes and returns them.

Runs are what `ogd.lab.training.train` returned, a record or a list of records, a folder of them as `ogd run` names it,
or accuracy matrices of your own: (1 + tasks, tasks) or (runs, 1 + tasks, tasks), fractions, row i after i tasks.
"""

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_hex

from ogd.checks import ArgumentError
from ogd.lab.catalogue import METHODS, Look
from ogd.lab.catalogue.looks import PALETTE
from ogd.lab.records import RunRecord, read
from ogd.lab.reporting.accuracy_plots import COLOURS, Trace, colour_floor, draw_matrix, draw_traces
from ogd.lab.reporting.style import styled

__all__ = ["matrix", "methods", "tasks"]

Array: TypeAlias = npt.NDArray[np.float64]
Runs: TypeAlias = Any  # as above


def tasks(runs: Runs, ax: Axes | None = None) -> Axes:
    """Draw the accuracy on each task as the others are learned: a line per task, from the moment it is learned.

    Examples:
        >>> from ogd.lab import plot
        >>> forgetful = [[0.1, 0.1], [0.9, 0.2], [0.6, 0.9]]  # before any task, after the first, after the second
        >>> ax = plot.tasks(forgetful)
        >>> ax.get_ylabel(), [label.get_text() for label in ax.texts]
        ('accuracy (%)', ['task 1', 'task 2'])

    Args:
        runs: of one method, as above.
        ax: where to draw; None makes a new figure.
    """
    percent = _percent(runs)
    drawn = []
    for task in range(percent.shape[-1]):
        drawn.append(Trace(f"task {task + 1}", _one(percent, task), _shade(task, percent.shape[-1])))
    return _draw(ax, drawn, "accuracy (%)")


def matrix(runs: Runs, ax: Axes | None = None) -> Axes:
    """Draw the accuracy matrix as a heat map: after task i (down), on task j (across), the mean over runs in percent.

    Tasks that were not learned yet stand without colour.

    Examples:
        >>> from ogd.lab import plot
        >>> ax = plot.matrix([[0.1, 0.1], [0.9, 0.2], [0.6, 0.9]])
        >>> [cell.get_text() for cell in ax.texts]
        ['90.0', '20.0', '60.0', '90.0']

    Args:
        runs: of one method, as above.
        ax: where to draw; None makes a new figure.
    """
    percent = _percent(runs).mean(0)[1:]
    with styled():
        ax = ax or _axes()
        draw_matrix(ax, percent, Normalize(colour_floor(percent), 100))
        ax.set(xlabel="accuracy (%) on task", ylabel="after training on task")
    return ax


def methods(runs: Mapping[str, Runs], task: int | None = None, ax: Axes | None = None) -> Axes:
    """Compare methods: the average accuracy on the tasks learned so far, or the accuracy on one task.

    Methods of the catalogue have the colours they have everywhere else.

    Examples:
        >>> from ogd.lab import plot
        >>> sgd = [[0.1, 0.1], [0.9, 0.2], [0.6, 0.9]]
        >>> mine = [[0.1, 0.1], [0.9, 0.2], [0.8, 0.8]]
        >>> ax = plot.methods({"sgd": sgd, "mine": mine}, task=1)
        >>> ax.get_ylabel(), [label.get_text() for label in ax.texts]
        ('accuracy on task 1 (%)', ['SGD', 'mine'])

    Args:
        runs: a name for each method, and its runs, as above.
        task: which task, counted from 1; None: the average over the tasks learned so far.
        ax: where to draw; None makes a new figure.
    """
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(f'runs must be a dictionary such as {{"ogd": runs, "sgd": others}}, not {runs!r:.60}')
    percents = {name: _percent(one) for name, one in runs.items()}
    counts = {percent.shape[-1] for percent in percents.values()}
    if len(counts) > 1:
        raise ArgumentError("runs", f"all methods must have learned the same number of tasks, not {sorted(counts)}")
    (count,) = counts
    if task is not None and task not in range(1, count + 1):
        raise ArgumentError("task", f"there are tasks 1 to {count}, not {task!r}")
    drawn = []
    for number, (name, percent) in enumerate(percents.items()):
        entry = METHODS.get(name)
        look, label = (entry.look, entry.label) if entry else (PALETTE[number % len(PALETTE)], name)
        drawn.append(Trace(label, _so_far(percent) if task is None else _one(percent, task - 1), look))
    return _draw(ax, drawn, "average over the tasks so far (%)" if task is None else f"accuracy on task {task} (%)")


def _percent(runs: Runs) -> Array:
    """Return percentages (runs, 1 + tasks, tasks)."""
    if isinstance(runs, str | PathLike):
        paths = sorted(Path(runs).glob("run-*.json"))
        if not paths:
            raise ArgumentError("runs", f"there are no records run-*.json in {str(runs)!r}")
        runs = [read(path) for path in paths]
    dead = getattr(runs, "dead", False)
    if isinstance(runs, Sequence) and runs and isinstance(runs[0], RunRecord):
        dead, runs = [record.dead for record in runs], [record.accuracy for record in runs]
    if count := int(np.sum(dead)):
        warnings.warn(f"{count} of {np.size(dead)} runs are dead, and are drawn like the others", stacklevel=3)
    found: Array = np.asarray(getattr(runs, "accuracy", runs), dtype=np.float64)
    found = found[None] if found.ndim == 2 else found
    if found.ndim != 3 or found.shape[1] != found.shape[2] + 1 or 0 in found.shape:
        raise ArgumentError("runs", f"an accuracy matrix is (1 + tasks, tasks), one or several, not {found.shape}")
    return 100 * found


def _so_far(percent: Array) -> Array:
    """Return the mean over the tasks learned, after each, (runs, tasks)."""
    learned = np.tril(np.ones(percent.shape[-2:]), -1)[1:]  # row i: the first i tasks
    return np.asarray((percent[:, 1:] * learned).sum(-1) / learned.sum(-1))


def _one(percent: Array, task: int) -> Array:
    """Return the accuracy on one task after each, NaN before it is learned, (runs, tasks)."""
    values = percent[:, 1:, task].copy()
    values[:, :task] = np.nan
    return values


def _shade(task: int, tasks: int) -> Look:
    """Let colours run from the first task to the last, short of the brightest."""
    return Look(to_hex(COLOURS(0.85 * task / max(tasks - 1, 1))))


def _draw(ax: Axes | None, drawn: Sequence[Trace], measure: str) -> Axes:
    with styled():
        ax = ax or _axes()
        draw_traces(ax, drawn)
        ax.set_ylabel(measure)
    return ax


def _axes() -> Axes:
    from matplotlib import pyplot

    axes: Axes = pyplot.subplots(layout="constrained")[1]
    return axes
