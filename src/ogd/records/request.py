"""What is asked of a run: everything its result depends on, but for the run's own number."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from ogd import catalogue
from ogd.data import Dataset
from ogd.records import partition as partitions
from ogd.records.partition import Partition

HEADS = ("multi", "single")
TASKS = 5


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
    options: dict[str, int | float | str]  # the method's own
    curve_every: int | None  # steps between two points of the training curves
    data: str
    data_sha256: str
    init: str = "pytorch"  # fields that came later have a default: what older records did

    @property
    def key(self) -> str:
        """A short digest that tells requests apart; a field that is None or at its default takes no part in it."""
        default = {field.name: field.default for field in fields(self)}
        return digest({name: value for name, value in asdict(self).items() if value not in (None, default[name])})

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
    hidden: Sequence[int] = (100, 100),
    epochs: int = 5,
    batch_size: int = 10,
    lr: float = 1e-3,
    momentum: float = 0.0,
    seed: int = 0,
    curve_every: int | None = None,
    init: str = "pytorch",
    **options: int | float | str | None,
) -> Request:
    """Resolve what a user says, with the paper's defaults, or raise a ValueError that names the argument.

    Examples:
        >>> from ogd.data import load
        >>> resolve("rotated", "sgd", load()).angles
        (0.0, 10.0, 20.0, 30.0, 40.0)
    """
    catalogue.check_name("benchmark", benchmark, catalogue.BENCHMARKS)
    catalogue.check_name("method", method, catalogue.METHODS)
    at_least(
        1, optional=("tasks", "curve_every"), tasks=tasks, epochs=epochs, batch_size=batch_size, curve_every=curve_every
    )
    at_least(0, seed=seed)
    if not hidden:
        raise ValueError("hidden: give at least one layer")
    for units in hidden:
        at_least(1, hidden=units)
    check_rates(lr, momentum)
    catalogue.check_name("init", init, catalogue.INITS)
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
        hidden=tuple(hidden),
        epochs=epochs,
        batch_size=batch_size,
        lr=float(lr),
        momentum=float(momentum),
        seed=seed,
        options=resolve_options(method, benchmark, options),
        curve_every=curve_every,
        data=dataset.name,
        data_sha256=dataset.sha256,
        init=init,
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
        raise ValueError(f"its request has {', '.join(unknown)}, which this version of ogd does not know; a newer one does")
    return Request(**{name: _frozen(part) for name, part in value.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def resolve_angles(tasks: int | None, angles: Sequence[float] | None) -> tuple[float, ...]:
    """Return the angles of Rotated's tasks: 0, 10, 20, … unless given."""
    at_least(1, optional=("tasks",), tasks=tasks)
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
    at_least(1, optional=("tasks",), tasks=tasks)
    catalogue.check_name("heads", heads, HEADS)
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


def resolve_options(
    method: str, benchmark: str, given: Mapping[str, int | float | str | None]
) -> dict[str, int | float | str]:
    """Return all of a method's own options, defaults where `given` has none or None."""
    known = {option.name: option for option in catalogue.METHODS[method].options}
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{name}: is no option of {method}" + (f", which has {', '.join(known)}" if known else ""))
        known[name].check(value)
    if options.get("every", 1) != 1:
        if options.get("projection") == "implicit":
            raise ValueError(f"every: {options['every']} needs projection 'explicit'; 'implicit' projects every step")
        options["projection"] = "explicit"
    defaults = {name: option.default for name, option in known.items()}
    if "ewc_lambda" in known:
        defaults["ewc_lambda"] = catalogue.EWC_LAMBDA[benchmark]
        options = {name: float(v) if name == "ewc_lambda" else v for name, v in options.items()}
    return {name: options.get(name, default) for name, default in defaults.items()}  # type: ignore[misc]


def check_rates(lr: float, momentum: float) -> None:
    """Raise a ValueError unless both can be used."""
    for name, value in [("lr", lr), ("momentum", momentum)]:
        if not isinstance(value, int | float):
            raise ValueError(f"{name}: must be a number, not {value!r}")
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr: must be a positive number, not {lr}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum: must be at least 0 and below 1, not {momentum}")


def at_least(least: int, *, optional: Sequence[str] = (), **arguments: Any) -> None:
    """Raise a ValueError that names the argument which is not a whole number of at least `least`."""
    for name, value in arguments.items():
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError(f"{name}: must be a whole number, not {value!r}")
        if value < least:
            raise ValueError(f"{name}: must be at least {least}, not {value}")


def _belongs(argument: str, value: object, benchmark: str, owner: str) -> None:
    if value is not None and benchmark != owner:
        raise ValueError(f"{argument}: is for benchmark {owner!r}, not {benchmark!r}")
