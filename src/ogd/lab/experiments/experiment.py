"""An experiment as data: what to run, how its cells are read off the accuracy matrix, how it is drawn, what was
published."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from ogd.checks import ArgumentError, check_name, check_whole, is_number, nearest
from ogd.lab.catalogue import METHODS, Look
from ogd.lab.records.request import Schedule

Setting = dict[str, Any]  # keyword arguments of ogd.lab.experiments.resolve; `data` is the name of a known data set
VALUES = ("final", "first", "last", "average", "agreement")
DRAWINGS = ("bars", "curves", "lines", "panels")
YARDSTICK = "sgd_over_sgd"  # the `speed` of SGD's own row
ALL = "all"  # on the command line: every experiment but those that must be named


@dataclass(frozen=True)
class Cell:
    """A published accuracy in percent: mean ± standard deviation over runs; 1 run where their number is not known."""

    mean: float
    std: float
    runs: int = 1

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.std / math.sqrt(self.runs)


@dataclass(frozen=True)
class Row:
    """One line: a method, and either one setting (its columns are tasks) or one setting per column."""

    label: str
    method: str
    settings: tuple[Setting, ...]
    published: tuple[Cell, ...] = ()
    speed: str = ""  # the ratio of `ogd bench` that belongs to it
    look: Look | None = None  # its method's, unless given
    subject: bool = False  # the method in question: drawn on top, and its average is in the summary
    yardstick: bool = False  # beside the method in question, with records that other experiments have, too


@dataclass(frozen=True)
class Reference:
    """A line that others published: a cell per column as it was printed there, and where each number was read.

    A cell is `94.8` or `95.76 ± 0.02`, and empty where there is none.
    """

    label: str
    cells: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Drawing:
    """How a figure is drawn.

    "bars" and "lines" stand over the columns, "panels" are a plot per column, "curves" show the accuracy while
    training. `over` names the setting whose values the x axis has (of several values the last); without it the columns
    stand evenly.
    """

    kind: str
    axis: str = ""  # what stands along the x axis
    over: str = ""
    log: bool = False  # lines only

    def __post_init__(self) -> None:
        check_name("drawing", self.kind, DRAWINGS)
        if self.over and self.kind not in ("bars", "lines"):
            raise ArgumentError("over", f"is for bars and lines, not for {self.kind}")
        if self.log and not (self.kind == "lines" and self.over):
            raise ArgumentError("log", "is for lines over a setting")

    def where(self, setting: Setting) -> float:
        """Return where a setting stands on the x axis."""
        value: Any = setting.get(self.over)
        value = value[-1] if isinstance(value, tuple | list) and value else value
        if not is_number(value):
            raise ArgumentError("over", f"a setting has {value!r} for {self.over!r}, which is not a number")
        return float(value)


@dataclass(frozen=True)
class Experiment:
    """A table, or a figure where it has a `drawing`.

    A cell is, by `value`: "final", the accuracy on each task after the last; "first" or "last", that on the first or
    last task alone; "average", its mean over tasks; "agreement", how the published cells of another table came out:
    `parts` has a line per table, which is a version of it per column. `note` tells a reader what title and columns do
    not. `references` are lines of others, which stand beside ours and judge nothing.
    """

    name: str
    title: str
    value: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    runs: int
    where: str = "Ours"  # or where in the paper
    drawing: Drawing | None = None
    note: str = ""
    profile: str = "the paper's scale"
    parts: tuple[tuple["Experiment", ...], ...] = ()
    references: tuple[Reference, ...] = ()
    digits: int = 1  # after the point
    named: bool = False  # run where it is named, not as one of all

    def __post_init__(self) -> None:
        check_name("value", self.value, VALUES)
        if bool(self.parts) != (self.value == "agreement") or (self.parts and (self.rows or self.drawing)):
            raise ArgumentError("parts", "are for a table of value 'agreement', which has nothing else")
        for versions in self.parts:
            if len(versions) != len(self.columns):
                raise ArgumentError(
                    "parts", f"{versions[0].name!r} has {len(versions)} versions, not {len(self.columns)}"
                )
        for line in self.references:
            if len(line.cells) != len(self.columns) or not line.source:
                raise ArgumentError("references", f"{line.label!r} needs {len(self.columns)} cells and a source")
        for row in self.rows:
            check_name("method", row.method, METHODS)
            wanted = 1 if self.value == "final" else len(self.columns)
            if len(row.settings) != wanted:
                raise ArgumentError("settings", f"row {row.label!r} has {len(row.settings)}, not {wanted}")
            if row.published and len(row.published) != len(self.columns):
                raise ArgumentError("published", f"row {row.label!r} has {len(row.published)}, not {len(self.columns)}")
        if self.drawing:
            _check_drawn(self, self.drawing)

    @property
    def kind(self) -> str:
        return "figure" if self.drawing else "table"

    @property
    def trained(self) -> Iterator["Experiment"]:
        """What has rows to train: the experiment itself, or all versions of its parts."""
        if not self.parts:
            yield self
        for versions in self.parts:
            yield from versions

    @property
    def data(self) -> list[str]:
        """The data sets that its settings name."""
        settings = [setting for one in self.trained for row in one.rows for setting in row.settings]
        return sorted({setting["data"] for setting in settings if "data" in setting})


EXPERIMENTS: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    """Add an experiment to those that are run and reported by name, and return it.

    Examples:
        >>> register(EXPERIMENTS["rotated"])
        Traceback (most recent call last):
        ogd.checks.ArgumentError: name: 'rotated' is taken; choose another
    """
    if experiment.name in (ALL, *EXPERIMENTS):
        raise ArgumentError("name", f"{experiment.name!r} is taken; choose another")
    EXPERIMENTS[experiment.name] = experiment
    return experiment


def choose(names: Sequence[str], *, quickly: bool, runs: int | None) -> list[Experiment]:
    """Return the experiments with these names, with another number of runs unless `runs` is None.

    `all` means every experiment except leaderboards and those that run whole tables again; `table1` and `figure3`
    those that have this number in the paper.
    """
    numbered = by_number()
    names = [one for name in names for one in numbered.get(name.lower().replace(" ", ""), [name])]
    for name in names:
        if name not in (*EXPERIMENTS, ALL):
            near = nearest(name, EXPERIMENTS)
            hint = f"did you mean {near!r}?" if near else "`ogd list` shows all tables and figures"
            raise ArgumentError("names", f"there is no {name!r}; {hint}")
    check_whole(1, optional=("runs",), runs=runs)
    every = [name for name, experiment in EXPERIMENTS.items() if not (experiment.parts or experiment.named)]
    wanted = dict.fromkeys([*names, *every] if ALL in names else names)
    wanted.pop(ALL, None)
    chosen = [quick(EXPERIMENTS[name]) if quickly else EXPERIMENTS[name] for name in wanted]
    return [with_runs(experiment, runs) for experiment in chosen] if runs else chosen


def by_number() -> dict[str, list[str]]:
    """Return the names of the experiments that have a number in the paper, such as those of table4."""
    found: dict[str, list[str]] = {}
    for name, experiment in EXPERIMENTS.items():
        if re.fullmatch(r"(Table|Figure) \d+", experiment.where):
            found.setdefault(experiment.where.lower().replace(" ", ""), []).append(name)
    return found


def varied(experiment: Experiment, **setting: Any) -> Experiment:
    """Return the experiment with something else in all its settings."""
    rows = [replace(row, settings=tuple({**said, **setting} for said in row.settings)) for row in experiment.rows]
    return replace(experiment, rows=tuple(rows))


def with_runs(experiment: Experiment, runs: int) -> Experiment:
    """Return the experiment with so many runs."""
    parts = tuple(tuple(with_runs(version, runs) for version in versions) for versions in experiment.parts)
    return replace(experiment, runs=runs, parts=parts)


def quick(experiment: Experiment) -> Experiment:
    """Return the quick profile: a fifth of the epochs at five times the learning rate, 2 runs.

    Learning rate × steps is the paper's, and so, nearly, are the numbers. Of long trainings it is a tenth. Columns
    where EWC's penalty would diverge at that rate are left out.
    """
    if experiment.parts:
        parts = tuple(tuple(quick(version) for version in versions) for versions in experiment.parts)
        return replace(experiment, parts=parts, runs=2, profile=parts[0][0].profile)
    epochs = [setting.get("epochs", Schedule.epochs) for row in experiment.rows for setting in row.settings]
    factor = 5 if max(epochs) <= Schedule.epochs else 10
    rows = [replace(row, settings=tuple(_shorten(s, factor) for s in row.settings)) for row in experiment.rows]
    columns, references = experiment.columns, experiment.references
    if experiment.value != "final":  # a column is a setting
        stable = [all(_stable(row.settings[i]) for row in rows) for i in range(len(columns))]
        if any(stable):
            rows = [_select_columns(row, stable) for row in rows]
            columns = tuple(compress(columns, stable))
            references = tuple(replace(one, cells=tuple(compress(one.cells, stable))) for one in references)
    profile = f"quick profile: 1/{factor} of the epochs at {factor} × the lr"
    if max(epochs) == 1:
        profile = "quick profile: fewer runs"
    elif all(setting.get("optimizer") == "adam" for row in rows for setting in row.settings):
        profile = f"quick profile: 1/{factor} of the epochs"
    return replace(experiment, columns=columns, rows=tuple(rows), runs=2, profile=profile, references=references)


def _check_drawn(experiment: Experiment, drawing: Drawing) -> None:
    """Raise a ValueError where the settings are not what the drawing needs."""
    settings = [setting for row in experiment.rows for setting in row.settings]
    if drawing.over:
        if experiment.value == "final":
            raise ArgumentError("over", "the columns of value 'final' are tasks, not settings")
        for setting in settings:
            drawing.where(setting)
    if drawing.kind == "curves" and (
        experiment.value != "final" or not all(setting.get("curve_every") for setting in settings)
    ):
        raise ArgumentError("drawing", "curves take value 'final' and settings with curve_every")


def _shorten(setting: Setting, factor: int) -> Setting:
    """Keep lr × epochs, with the epochs divided by `factor` as far as they can be; Adam's lr stays."""
    epochs, lr = setting.get("epochs", Schedule.epochs), setting.get("lr", Schedule.lr)
    fewer = max(epochs // factor, 1)
    return {**setting, "epochs": fewer, "lr": lr * (1 if setting.get("optimizer") == "adam" else epochs / fewer)}


def _stable(setting: Setting) -> bool:
    """λ F η < 2 or it diverges, and F reaches 1 or 2 in places."""
    return bool(setting.get("ewc_lambda", 0) * setting["lr"] <= 1)


def _select_columns(row: Row, columns: list[bool]) -> Row:
    return replace(
        row, settings=tuple(compress(row.settings, columns)), published=tuple(compress(row.published, columns))
    )
