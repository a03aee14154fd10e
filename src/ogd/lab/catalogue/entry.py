"""An entry of the catalogue: a name's summary, where its object lives, how it looks and what options it takes."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ogd.checks import ArgumentError, check_name, check_whole, is_number
from ogd.lab.catalogue.looks import UNKNOWN, Look
from ogd.visible_text import is_unicode

Value = int | float | str
V = TypeVar("V", bound=Value | None)
Weight = Callable[[Mapping[str, Value], int], float]  # (options, finished tasks) → time of a step over SGD's
Size = Callable[[Mapping[str, Value], int], float]  # (options, tasks) → bytes of a run, if they are many
Rule = Callable[[Mapping[str, Value], str, str], Mapping[str, Value]]  # (options, optimizer, model) → what follows
Target = str | Callable[..., Any]  # "module:attribute", or the object itself
PLAIN_RULES = "ogd.lab.benchmarks.rules:Rules"


@dataclass(frozen=True)
class Option(Generic[V]):
    """An option of a method or a benchmark: an argument of its class or function, and of the command line.

    `tuned` has pairs (benchmark, value): the default there, chosen on validation data by `ogd tune`, which tries the
    values of `grid`. Where the default is None, the benchmark's rules find one, and `takes` says what a value is.
    """

    name: str
    default: V
    help: str
    choices: tuple[str, ...] = ()
    tuned: tuple[tuple[str, float], ...] = ()
    grid: tuple[float, ...] = ()
    formerly: str = ""  # its name in the first records
    least: float | None = None  # of a number: 1 for a whole one and 0 for any other, unless said
    most: float | None = None  # of a number
    takes: type | None = None
    several: bool = False  # takes one value or more
    metavar: str = ""  # how its value is shown in --help
    later: bool = False  # added later: omitted from the key at its default

    @property
    def kind(self) -> type:
        return self.takes or type(self.default)

    def default_on(self, benchmark: str) -> Any:
        """Return the value for a benchmark where none is given."""
        return dict(self.tuned).get(benchmark, self.default)

    def value(self, given: Any, benchmark: str = "") -> Any:
        """Check a value and convert it, or return the default for None."""
        if given is not None:
            self.check(given)
        return self.convert(given, benchmark)

    def convert(self, given: Any, benchmark: str = "") -> Any:
        """Return a checked value as the kind the option has, or the default for None."""
        if given is None:
            return self.default_on(benchmark)
        if self.several:
            return tuple(self.kind(item) for item in given)
        return self.kind(given)

    def check(self, value: Any) -> None:
        """Raise a ValueError that names the option unless it can take this value."""
        if self.several:
            if isinstance(value, str) or not hasattr(value, "__iter__") or not list(value):
                raise ArgumentError(self.name, f"give one value or more, not {value!r}")
            for item in value:
                self._check_one(item)
        else:
            self._check_one(value)

    def _check_one(self, value: Any) -> None:
        if self.choices:
            check_name(self.name, value, self.choices)
        elif self.kind is int:
            check_whole(1 if self.least is None else int(self.least), **{self.name: value})
        elif self.kind is float:
            least = self.least or 0
            if not is_number(value) or value < least:
                raise ArgumentError(self.name, f"must be a number of at least {least:g}, not {value!r}")
        elif not isinstance(value, str) or not is_unicode(value):
            raise ArgumentError(self.name, f"must be text, not {value!r}")
        if self.most is not None and value > self.most:
            raise ArgumentError(self.name, f"must be at most {self.most:,}, not {value:,}")


@dataclass(frozen=True)
class Entry:
    """A name in the catalogue; its object is imported on first use."""

    label: str  # in tables and legends
    summary: str
    target: Target

    def load(self) -> Any:
        return load(self.target)


def load(target: Target) -> Any:
    """Import what a target names."""
    if not isinstance(target, str):
        return target
    module, attribute = target.split(":")
    return getattr(importlib.import_module(module), attribute)


def like_sgd(options: Mapping[str, Value], finished: int) -> float:
    return 1.0


def small(options: Mapping[str, Value], tasks: int) -> float:
    return 0.0


def no_rule(options: Mapping[str, Value], optimizer: str, model: str) -> Mapping[str, Value]:
    return {}


@dataclass(frozen=True)
class Method(Entry):
    """A method: its class, the options it takes, how it is drawn and roughly what a step and a run of it take.

    `rule` is for options that depend on one another: it returns those that follow from the ones given, or raises a
    ValueError.
    """

    options: tuple[Option[Any], ...] = ()
    look: Look = UNKNOWN
    weight: Weight = like_sgd
    size: Size = small
    rule: Rule = no_rule
    bound: bool = False  # an upper bound, not a rival

    def check(self, **given: Any) -> None:
        """Raise a ValueError that names the option which cannot take its value."""
        for option in self.options:
            if option.name in given:
                option.check(given[option.name])

    def resolve(self, given: Mapping[str, Any], benchmark: str, optimizer: str, model: str) -> dict[str, Value]:
        """Return all options of the method, checked, with defaults for those that are not given."""
        self.check(**given)
        resolved = {**given, **self.rule(given, optimizer, model)}
        return {option.name: option.convert(resolved.get(option.name), benchmark) for option in self.options}


@dataclass(frozen=True)
class Benchmark(Entry):
    """A benchmark: the function that makes it, the settings that are its own, and the rules they follow.

    `rules` is a subclass of `ogd.lab.benchmarks.rules.Rules`, in a module that does not import torch.
    """

    settings: tuple[Option[Any], ...] = ()
    rules: Target = PLAIN_RULES
