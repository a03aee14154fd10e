"""What is asked of a run: everything its result depends on, but for the run's own number."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from ogd import catalogue
from ogd.catalogue.entry import Value
from ogd.checks import check_name, check_whole
from ogd.data import Dataset
from ogd.records import partition as partitions
from ogd.records.partition import Partition
from ogd.records.schedule import Schedule

HEADS = ("multi", "single")
TASKS = 5
HIDDEN = {"mlp": (100, 100), "cnn": (100,)}  # units of the hidden linear layers, by model


@dataclass(frozen=True)
class Request:
    """One setting of an experiment, resolved and checked; `resolve` makes it from what a user says."""

    benchmark: str
    method: str
    tasks: int
    angles: tuple[float, ...] | None  # rotated
    partition: Partition | None  # split
    heads: str | None  # split
    hidden: tuple[int, ...]
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    seed: int
    options: dict[str, Value]  # the method's own
    curve_every: int | None  # steps between two points of the training curves
    data: str
    data_sha256: str
    init: str = "pytorch"  # fields that came later have a default: what older records did
    optimizer: str = "sgd"
    model: str = "mlp"

    @property
    def key(self) -> str:
        """A short digest that tells requests apart; a field that is None or at its default takes no part in it."""
        default = {field.name: field.default for field in fields(self)}
        said = {name: value for name, value in asdict(self).items() if value not in (None, default[name])}
        former = {option.name: option.formerly for option in catalogue.METHODS[self.method].options if option.formerly}
        return digest({**said, "options": {former.get(name, name): value for name, value in self.options.items()}})

    @property
    def task_names(self) -> tuple[str, ...]:
        if self.angles is not None:
            return tuple(f"{angle:g}°" for angle in self.angles)
        if self.partition is not None:
            return tuple(partitions.name([part]) for part in self.partition)
        return tuple(f"task {number}" for number in range(1, self.tasks + 1))


def digest(value: object) -> str:
    """Return twelve letters that tell JSON values apart."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def resolve(
    benchmark: str,
    method: str,
    dataset: Dataset,
    *,
    tasks: int | None = None,
    angles: Sequence[float] | None = None,
    partition: str | None = None,
    heads: str | None = None,
    model: str = "mlp",
    hidden: Sequence[int] | None = None,
    init: str = "pytorch",
    epochs: int = Schedule.epochs,
    batch_size: int = Schedule.batch_size,
    lr: float = Schedule.lr,
    optimizer: str = Schedule.optimizer,
    momentum: float = Schedule.momentum,
    seed: int = Schedule.seed,
    curve_every: int | None = Schedule.curve_every,
    **options: Value | None,
) -> Request:
    """Resolve what a user says, with the paper's defaults, or raise a ValueError that names the argument.

    Examples:
        >>> from ogd.data import load
        >>> resolve("rotated", "sgd", load()).angles
        (0.0, 10.0, 20.0, 30.0, 40.0)
    """
    check_name("benchmark", benchmark, catalogue.BENCHMARKS)
    check_name("method", method, catalogue.METHODS)
    check_name("model", model, HIDDEN)
    check_name("init", init, catalogue.INITS)
    check_whole(1, optional=("tasks",), tasks=tasks)
    schedule = Schedule(epochs, batch_size, lr, optimizer, momentum, seed, curve_every)
    hidden = resolve_hidden(model, hidden)
    _belongs("angles", angles, benchmark, "rotated")
    _belongs("partition", partition, benchmark, "split")
    _belongs("heads", heads, benchmark, "split")
    turned, dealt = None, None
    if benchmark == "rotated":
        turned = resolve_angles(tasks, angles)
        tasks = len(turned)
    elif benchmark == "split":
        heads = heads or "multi"
        dealt = resolve_partition(tasks, partition, heads, dataset.classes)
        tasks = len(dealt)
    return Request(
        benchmark=benchmark,
        method=method,
        tasks=tasks or TASKS,
        angles=turned,
        partition=dealt,
        heads=heads,
        hidden=hidden,
        options=resolve_options(method, benchmark, optimizer, options),
        data=dataset.name,
        data_sha256=dataset.sha256,
        init=init,
        model=model,
        **{**asdict(schedule), "lr": float(lr), "momentum": float(momentum)},
    )


def from_json(value: Any) -> Request:
    """Read a request out of a record; raise a ValueError that says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("its request is not an object")
    known = {field.name: field.default is MISSING for field in fields(Request)}
    missing = [name for name, needed in known.items() if needed and name not in value]
    if missing:
        raise ValueError(f"its request lacks {', '.join(missing)}")
    if unknown := sorted(set(value) - set(known)):
        raise ValueError(
            f"its request has {', '.join(unknown)}, which this version of ogd does not know; a newer one does"
        )
    check_name("its method", value["method"], catalogue.METHODS)
    now = {option.formerly: option.name for option in catalogue.METHODS[value["method"]].options if option.formerly}
    options = {now.get(name, name): part for name, part in dict(value["options"]).items()}
    return Request(**{name: _frozen(part) for name, part in {**value, "options": options}.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def resolve_angles(tasks: int | None, angles: Sequence[float] | None) -> tuple[float, ...]:
    """Return the angles of Rotated's tasks: 0, 10, 20, … unless given."""
    check_whole(1, optional=("tasks",), tasks=tasks)
    if angles is None:
        return tuple(10.0 * t for t in range(tasks or TASKS))
    if len(angles) == 0 or not all(math.isfinite(angle) for angle in angles):
        raise ValueError(f"angles: give at least one finite number of degrees, not {list(angles)}")
    if tasks is not None and tasks != len(angles):
        raise ValueError(f"angles: {len(angles)} angles do not make {tasks} tasks; leave out one of the two")
    return tuple(float(angle) for angle in angles)


def resolve_partition(
    tasks: int | None, given: str | Partition | None, heads: str, classes: Sequence[int]
) -> Partition:
    """Return the classes of Split's tasks: dealt out in order and evenly unless given."""
    check_whole(1, optional=("tasks",), tasks=tasks)
    check_name("heads", heads, HEADS)
    if given is None:
        dealt = partitions.even(classes, tasks or TASKS)
        if heads == "multi" and min(len(part) for part in dealt) < 2:
            raise ValueError(
                f"tasks: {len(classes)} classes over {tasks or TASKS} tasks leave a head with a single one"
            )
    elif isinstance(given, str):
        dealt = partitions.parse(given, classes, tasks or TASKS)
    else:
        dealt = given
    if tasks is not None and tasks != len(dealt):
        raise ValueError(
            f"partition: {partitions.name(dealt)} makes {len(dealt)} tasks, not {tasks}; leave out one of the two"
        )
    partitions.check(dealt, classes, heads)
    return dealt


def resolve_hidden(model: str, hidden: Sequence[int] | None) -> tuple[int, ...]:
    """Return the units of a model's hidden linear layers; a CNN has exactly one."""
    if hidden is None:
        return HIDDEN[model]
    if not hidden:
        raise ValueError("hidden: give at least one layer")
    for units in hidden:
        check_whole(1, hidden=units)
    if model == "cnn" and len(hidden) != 1:
        raise ValueError(f"hidden: a cnn has one hidden linear layer, not {len(hidden)}")
    return tuple(hidden)


def resolve_options(method: str, benchmark: str, optimizer: str, given: Mapping[str, Value | None]) -> dict[str, Value]:
    """Return all of a method's own options, defaults where `given` has none or None."""
    known = {option.name: option for option in catalogue.METHODS[method].options}
    options: dict[str, Value] = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{name}: is no option of {method}" + (f", which has {', '.join(known)}" if known else ""))
        known[name].check(value)
        if known[name].kind is float:
            options[name] = float(value)
    if "projection" in known:
        options["projection"] = resolve_projection(options, optimizer)
    return {name: options.get(name, option.default_on(benchmark)) for name, option in known.items()}


def resolve_projection(options: Mapping[str, Value], optimizer: str) -> Value:
    """Return how OGD projects: implicitly wherever that is exact, which takes plain SGD and a projection every step."""
    every = options.get("every", 1)
    reason = f"every {every}" if every != 1 else f"optimizer {optimizer!r}" if optimizer != "sgd" else ""
    if reason and options.get("projection") == "implicit":
        raise ValueError(f"projection: 'implicit' projects every step of sgd; {reason} needs 'explicit'")
    return "explicit" if reason else options.get("projection", "implicit")


def _belongs(argument: str, value: object, benchmark: str, owner: str) -> None:
    if value is not None and benchmark != owner:
        raise ValueError(f"{argument}: is for benchmark {owner!r}, not {benchmark!r}")
