"""An entry of the catalogue: a name's summary, where its object lives, how it looks and what options it takes."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ogd.checks import check_name, check_whole, is_number

Value = int | float | str
V = TypeVar("V", bound=Value)
Weight = Callable[[Mapping[str, Value], int], float]  # (options, finished tasks) → time of a step over SGD's


@dataclass(frozen=True)
class Option(Generic[V]):
    """An option of a method: an argument of its class, and an option of the command line.

    `tuned` has pairs (benchmark, value): the default there, chosen on validation data by `ogd tune`, which tries the
    values of `grid`.
    """

    name: str
    default: V
    help: str
    choices: tuple[str, ...] = ()
    tuned: tuple[tuple[str, float], ...] = ()
    grid: tuple[float, ...] = ()
    formerly: str = ""  # its name in the first records and on the first command line

    @property
    def kind(self) -> type:
        return type(self.default)

    def default_on(self, benchmark: str) -> Value:
        """Return the value for a benchmark where none is given."""
        return dict(self.tuned).get(benchmark, self.default)

    def check(self, value: Any) -> None:
        """Raise a ValueError that names the option unless it can take this value."""
        if self.choices:
            check_name(self.name, value, self.choices)
        elif self.kind is int:
            check_whole(1, **{self.name: value})
        elif not is_number(value) or value < 0:
            raise ValueError(f"{self.name}: must be a number of at least 0, not {value!r}")


@dataclass(frozen=True)
class Look:
    """How a method is drawn: its colour, and its marker and dashes for readers who cannot tell colours apart."""

    colour: str
    marker: str = "o"
    dashes: Any = "-"  # as matplotlib has them


@dataclass(frozen=True)
class Entry:
    """A name in the catalogue; its object is imported on first use."""

    label: str  # in tables and legends
    summary: str
    target: str | Callable[..., Any]  # "module:attribute", or the object itself

    def load(self) -> Any:
        if not isinstance(self.target, str):
            return self.target
        module, attribute = self.target.split(":")
        return getattr(importlib.import_module(module), attribute)


def _like_sgd(options: Mapping[str, Value], finished: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Method(Entry):
    """A method: its class, the options it takes, how it is drawn and roughly what a step of it costs."""

    options: tuple[Option[Any], ...] = ()
    look: Look = Look("#757575")
    weight: Weight = _like_sgd


@dataclass(frozen=True)
class Benchmark(Entry):
    """A benchmark: the function that makes it, and the settings of a request that are its own."""

    settings: tuple[str, ...] = ()
