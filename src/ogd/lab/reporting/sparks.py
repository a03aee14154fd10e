"""A small plot for the terminal: the accuracy on each task over time, a line of blocks per method."""

from collections.abc import Sequence
from typing import TextIO

import numpy as np

from ogd.lab.benchmarks.rules import task_names
from ogd.lab.records import RunRecord
from ogd.lab.reporting.tables import Array, Table, matrices

BLOCKS = "▁▂▃▄▅▆▇█"
BEFORE = "·"  # a task that has not begun
MOST_TASKS, MOST_POINTS = 6, 24  # what fits beside one another


def drawable(out: TextIO) -> bool:
    """Whether `out` is a terminal that has the letters."""
    try:
        BLOCKS.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return out.isatty()


def sparks(answers: Sequence[Sequence[RunRecord]]) -> Table:
    """Return a line per method, which is a list of runs, with a column per task: time runs from left to right.

    A point is the accuracy after a task, or a point of the curves where all runs have one.
    """
    request = answers[0][0].request
    series = [_series(records) for records in answers]
    shown = np.unique(np.linspace(0, request.tasks - 1, min(request.tasks, MOST_TASKS)).round().astype(int))
    ends, all_points = (np.concatenate([values[k:, shown] for values in series]) for k in (-1, 0))
    low, high = np.floor(10 * ends.min()) / 10, np.ceil(100 * np.nanmax(all_points)) / 100  # the rise is cut off
    lines = tuple(
        ((records[0].request.method, *(spark(values[:, task], low, high) for task in shown)),)
        for records, values in zip(answers, series, strict=True)
    )
    names = task_names(request)
    left_out = f" Of {request.tasks} tasks {len(shown)} are shown." if len(shown) < request.tasks else ""
    caption = f"{BLOCKS[0]} is {100 * low:.0f} % or less, {BLOCKS[-1]} {100 * high:.0f} %; mean over runs.{left_out}"
    return Table("Each task while learning", caption, ("method", *(names[task] for task in shown)), lines)


def spark(values: Array, low: float, high: float) -> str:
    """Return values as blocks from `low` to `high`, two letters each where there are few; NaN is before the task.

    Examples:
        >>> spark(np.array([np.nan, 1.0, 0.8, 0.6]), 0.6, 1.0)
        '··██▅▅▁▁'
    """
    wide = 2 if len(values) <= MOST_POINTS // 2 else 1
    heights = np.clip((values - low) / max(high - low, 0.01) * (len(BLOCKS) - 1), 0, len(BLOCKS) - 1)
    return "".join((BEFORE if np.isnan(height) else BLOCKS[round(float(height))]) * wide for height in heights)


def _series(records: Sequence[RunRecord]) -> Array:
    """Return the mean over runs, (points, tasks), NaN before a task began."""
    curves = [record.curve.accuracy for record in records if record.curve is not None and record.curve.steps]
    if len(curves) == len(records):
        values = np.array(curves, dtype=np.float64).mean(0)
    else:
        values = matrices(records).mean(0)[1:]
        values[np.triu_indices(len(values), 1)] = np.nan
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).round().astype(int))
    return np.asarray(values[chosen])
