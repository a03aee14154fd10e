"""An experiment as data: what to run, how its cells are read off the accuracy matrix, and what was published."""

from dataclasses import dataclass, replace
from typing import Any

Setting = dict[str, Any]  # keyword arguments of ogd.records.resolve


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

    Learning rate × steps is the paper's, and so, nearly, are the numbers.
    """
    rows = tuple(
        replace(row, settings=tuple(_quick_setting(setting) for setting in row.settings)) for row in experiment.rows
    )
    return replace(experiment, rows=rows, runs=2, profile="quick profile: 1/5 of the epochs at 5 × the lr")


def _quick_setting(setting: Setting) -> Setting:
    return {**setting, "epochs": setting.get("epochs", 5) // 5, "lr": 5e-3}
