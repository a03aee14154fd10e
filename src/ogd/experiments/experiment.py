"""An experiment as data: what to run, how its cells are read off the accuracy matrix, and what was published."""

from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

Setting = dict[str, Any]  # keyword arguments of ogd.experiments.resolve


@dataclass(frozen=True)
class Cell:
    """A published accuracy in percent: mean ± standard deviation over runs."""

    mean: float
    std: float


@dataclass(frozen=True)
class Row:
    """One line: a method, and either one setting (its columns are tasks) or one setting a column."""

    label: str
    method: str
    settings: tuple[Setting, ...]
    published: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A table or a figure.

    A cell is, by `value`: "final", the accuracy on each task after the last; "first", that on the first task alone;
    "average", its mean over tasks.
    """

    name: str
    kind: str  # "table" or "figure"
    where: str  # in the paper
    title: str
    value: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    runs: int
    profile: str = "the paper's scale"


def quick(experiment: Experiment) -> Experiment:
    """Return the quick profile: a fifth of the epochs at five times the learning rate, 2 runs.

    Learning rate × steps is the paper's, and so, nearly, are the numbers. Of long trainings it is a tenth. Columns
    where EWC's penalty would diverge at that rate are left out.
    """
    factor = 10 if any(setting.get("epochs", 5) > 5 for row in experiment.rows for setting in row.settings) else 5
    rows = [replace(row, settings=tuple(_faster(s, factor) for s in row.settings)) for row in experiment.rows]
    columns = experiment.columns
    if experiment.value != "final":  # a column is a setting
        stable = [all(_stable(row.settings[i]) for row in rows) for i in range(len(columns))]
        rows = [replace(row, settings=tuple(compress(row.settings, stable))) for row in rows]
        columns = tuple(compress(columns, stable))
    profile = f"quick profile: 1/{factor} of the epochs at {factor} × the lr"
    return replace(experiment, columns=columns, rows=tuple(rows), runs=2, profile=profile)


def _faster(setting: Setting, factor: int) -> Setting:
    return {**setting, "epochs": setting.get("epochs", 5) // factor, "lr": factor * 1e-3}


def _stable(setting: Setting) -> bool:
    """λ F η < 2 or it diverges, and F reaches 1 or 2 in places."""
    return bool(setting.get("ewc_lambda", 0) * setting["lr"] <= 1)
