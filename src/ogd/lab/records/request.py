"""What is asked of a run: everything its result depends on, except the run's own number."""

import hashlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from ogd import json_files
from ogd.checks import ArgumentError, check_name, check_whole, is_number
from ogd.lab import catalogue
from ogd.lab.catalogue.entry import Value
from ogd.lab.records.schema import Newer, check_fields, check_known, inside

Partition = tuple[tuple[int, ...], ...]
MOST_TASKS = 300  # a record has a number for every pair of tasks
OPTIMIZERS = ("sgd", "adam")
HIDDEN = {"mlp": (100, 100), "cnn": (100,)}  # units of the hidden linear layers, by model


@dataclass(frozen=True)
class Schedule:
    """How long, how fast and in which order to train. Checked on creation.

    These defaults are the paper's, and the only ones: everything else refers to them.
    """

    epochs: int = 5
    batch_size: int = 10
    lr: float = 1e-3
    optimizer: str = "sgd"
    momentum: float = 0.0  # of sgd
    keep_optimizer: bool = False  # adam: keep its moments from one task to the next
    seed: int = 0
    curve_every: int | None = None  # steps between two points of the training curves

    def __post_init__(self) -> None:
        check_whole(1, epochs=self.epochs, batch_size=self.batch_size)
        check_whole(1, optional=("curve_every",), curve_every=self.curve_every)
        check_whole(0, seed=self.seed)
        check_name("optimizer", self.optimizer, OPTIMIZERS)
        if not is_number(self.lr) or self.lr <= 0:
            raise ArgumentError("lr", f"must be a positive number, not {self.lr!r}")
        if not is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise ArgumentError("momentum", f"must be a number of at least 0 and below 1, not {self.momentum!r}")
        if self.momentum and self.optimizer != "sgd":
            raise ArgumentError("momentum", f"is for optimizer 'sgd', not {self.optimizer!r}")
        if not isinstance(self.keep_optimizer, bool):
            raise ArgumentError("keep_optimizer", f"must be True or False, not {self.keep_optimizer!r}")
        if self.keep_optimizer and self.optimizer != "adam":
            raise ArgumentError("keep_optimizer", f"is for optimizer 'adam', not {self.optimizer!r}")

    def steps(self, *examples: int) -> int:
        """Return the number of steps for tasks with these numbers of training examples."""
        return self.epochs * sum(self.steps_per_epoch(n) for n in examples)

    def steps_per_epoch(self, examples: int) -> int:
        return math.ceil(examples / self.batch_size)


@dataclass(frozen=True)
class Request:
    """One setting of an experiment, resolved and checked: what `ogd.lab.experiments.resolve` returns."""

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
    settings: dict[str, Any] = field(default_factory=dict)  # of a benchmark that is not ours, and younger ones of ours
    biases: bool = True
    keep_optimizer: bool = False

    @property
    def key(self) -> str:
        """A short digest that tells requests apart; a field that is None or at its default takes no part in it."""
        said = {name: value for name, value in asdict(self).items() if value not in (None, _default(name))}
        options = {}
        for option in catalogue.METHODS[self.method].options:
            value = self.options[option.name]
            if not option.later or value != option.default:
                options[option.formerly or option.name] = value
        return digest({**said, "options": options})

    @property
    def schedule(self) -> Schedule:
        """The part of the request that says how to train."""
        return Schedule(**{one.name: getattr(self, one.name) for one in fields(Schedule)})

    @property
    def benchmark_arguments(self) -> dict[str, Any]:
        """What its benchmark is made with: arguments of the function, of which it takes those that it has."""
        said = {name: getattr(self, name) for name in ("tasks", "seed", "angles", "partition", "heads")}
        return {name: value for name, value in said.items() if value is not None} | self.settings


def _default(name: str) -> Any:
    (found,) = (one for one in fields(Request) if one.name == name)
    return found.default_factory() if found.default_factory is not MISSING else found.default


def digest(value: object) -> str:
    """Return twelve letters that tell JSON values apart."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def from_json(value: Any) -> Request:
    """Read a request out of a record; raise a ValueError that says what is wrong with it."""
    check_fields(value, Request, "its request")
    for kind, known in (("benchmark", catalogue.BENCHMARKS), ("method", catalogue.METHODS)):
        if json_files.text(value[kind], f"request.{kind}") not in known:
            named = f"the {kind} {json_files.short_repr(value[kind])}"
            raise Newer(named, "load the plugin that has it (--plugin FILE.py), or upgrade ogd")
    options = _options(value["method"], dict(json_files.fields(value["options"], "request.options")))
    _check(value, options)
    return Request(**{name: _frozen(part) for name, part in {**value, "options": options}.items()})


def _check(value: dict[str, Any], options: dict[str, Value]) -> None:
    """Raise an error that names the field which no request can have."""
    with inside("request"):
        Schedule(**{one.name: value[one.name] for one in fields(Schedule) if one.name in value})
        tasks = json_files.whole(value["tasks"], "tasks", 1, MOST_TASKS)
        for units in json_files.items(value["hidden"], "hidden"):
            check_whole(1, hidden=units)
        for name in ("data", "data_sha256", *({"init", "model"} & value.keys())):
            json_files.text(value[name], name)
        if value["heads"] is not None:
            json_files.text(value["heads"], "heads")
        json_files.fields(value.get("settings", {}), "settings")
        if value["benchmark"] == "rotated":
            for i, angle in enumerate(json_files.items(value["angles"], "angles", tasks)):
                json_files.number(angle, f"angles[{i}]")
        if value["benchmark"] == "split":
            for i, part in enumerate(json_files.items(value["partition"], "partition", tasks)):
                for label in json_files.items(part, f"partition[{i}]"):
                    json_files.whole(label, f"partition[{i}]")
        if value.get("model", Request.model) not in HIDDEN:
            raise Newer(f"the model {json_files.short_repr(value['model'])}")
    with inside("request.options"):
        catalogue.METHODS[value["method"]].check(**options)


def _options(method: str, given: dict[str, Value]) -> dict[str, Value]:
    """Return a method's options by today's names; an option added after the record was written is at its default."""
    known = catalogue.METHODS[method].options
    found = {}
    for option in known:
        names = [name for name in (option.name, option.formerly) if name in given]
        if not names and not option.later:
            raise ValueError(f"its request lacks the option {option.name}")
        found[option.name] = given[names[0]] if names else option.default
    check_known(given, {name for option in known for name in (option.name, option.formerly)}, "option", "its request")
    return found


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
