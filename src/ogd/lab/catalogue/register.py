"""Methods and benchmarks of a user's own: checked, and from then on names like all others."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from ogd.checks import ArgumentError
from ogd.lab.catalogue.benchmarks import BENCHMARKS
from ogd.lab.catalogue.entry import PLAIN_RULES, Benchmark, Entry, Method, Option, Target, Weight, like_sgd
from ogd.lab.catalogue.looks import PALETTE, Look
from ogd.lab.catalogue.methods import METHODS

C = TypeVar("C", bound=Callable[..., Any])

RESERVED = (  # names that a request or the command line has for something else
    "address", "backend", "batch_size", "benchmark", "biases", "command", "curve_every", "data", "data_sha256",
    "dataset", "epochs", "grid", "help", "hidden", "init", "jobs", "json", "keep_optimizer", "lr", "markdown",
    "method", "model", "momentum", "needs_laboratory", "optimizer", "options", "out", "plugin", "resumes", "runs",
    "seed", "settings", "tasks", "tensorboard",
)  # fmt: skip


def register_method(
    name: str,
    cls: C | None = None,
    *,
    label: str = "",
    summary: str = "",
    options: Sequence[Option[Any]] = (),
    look: Look | None = None,
    weight: Weight = like_sgd,
) -> Any:
    """Add a method to the catalogue, so that `ogd run --method NAME`, experiments and reports know it.

    `cls` is a subclass of `ogd.lab.methods.Method`; without it this is a decorator. `options` are arguments of the
    class that become options of the command line. The label (for tables) is the name unless given, the summary the
    first line of the class's docstring, and the look one that no method of ours has. `weight(options, finished tasks)`
    is roughly what a step costs in steps of SGD, for the time left.

    Examples:
        >>> from ogd.lab.catalogue import METHODS, Option
        >>> @register_method("calm", options=[Option("delay", 5, "steps to wait")])
        ... class Calm:
        ...     "Waits before it learns."
        ...     def __init__(self, delay=5):
        ...         self.delay = delay
        >>> METHODS.pop("calm").summary
        'Waits before it learns.'
    """

    def add(cls: C) -> C:
        _check_method(name, cls, options)
        if isinstance(cls, type) and "name" not in vars(cls):
            cls.name = name  # type: ignore[attr-defined]
        number = sum(not isinstance(entry.target, str) for entry in METHODS.values())
        drawn = look or PALETTE[number % len(PALETTE)]
        METHODS[name] = Method(label or name, summary or _first_line(cls), cls, tuple(options), drawn, weight)
        return cls

    return add if cls is None else add(cls)


def register_benchmark(
    name: str,
    make: C | None = None,
    *,
    label: str = "",
    summary: str = "",
    settings: Sequence[Option[Any]] = (),
    rules: Target = PLAIN_RULES,
) -> Any:
    """Add a benchmark to the catalogue, so that `ogd run --benchmark NAME` and experiments know it.

    `make(tasks=…, dataset=…)` returns an `ogd.lab.benchmarks.Benchmark` of so many tasks; without it this is a
    decorator. It may take `seed`, and takes the `settings`, which become options of the command line. `rules`, a
    subclass of `ogd.lab.benchmarks.Rules`, is for settings that depend on one another and for tasks of different sizes.

    Examples:
        >>> from ogd.lab.catalogue import BENCHMARKS
        >>> @register_benchmark("noisy", settings=[Option("noise", 0.1, "standard deviation of the noise")])
        ... def noisy(tasks, dataset, noise=0.1):
        ...     "Every task adds its own noise."
        >>> BENCHMARKS.pop("noisy").summary
        'Every task adds its own noise.'
    """

    def add(make: C) -> C:
        _check_benchmark(name, make, settings, rules)
        BENCHMARKS[name] = Benchmark(label or name, summary or _first_line(make), make, tuple(settings), rules)
        return make

    return add if make is None else add(make)


def _check_method(name: str, cls: Any, options: Sequence[Option[Any]]) -> None:
    _check_name("method", name, cls, METHODS)
    others = [entry.options for known, entry in METHODS.items() if known != name]
    _check_options("options", options, chain(*others), chain(*(entry.settings for entry in BENCHMARKS.values())))
    _check_takes("options", cls, [option.name for option in options])
    if any(option.default is None for option in options):
        raise ArgumentError("options", "every option of a method needs a default")
    if sum(bool(option.grid) for option in options) > 1:
        raise ArgumentError("options", "`ogd tune` chooses one option of a method: give a grid to one alone")


def _check_benchmark(name: str, make: Any, settings: Sequence[Option[Any]], rules: Target) -> None:
    _check_name("benchmark", name, make, BENCHMARKS)
    others = [entry.settings for known, entry in BENCHMARKS.items() if known != name]
    _check_options("settings", settings, chain(*others), chain(*(entry.options for entry in METHODS.values())))
    _check_takes("settings", make, ["tasks", "dataset", *(option.name for option in settings)], optional=["seed"])
    if rules == PLAIN_RULES and any(option.default is None for option in settings):
        raise ArgumentError("settings", "every setting needs a default, unless `rules` find one")


def _check_name(kind: str, name: str, target: object, entries: dict[str, Any]) -> None:
    if not callable(target):
        raise ArgumentError(kind, f"{name!r} must be a class or a function, not {target!r}")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ArgumentError("name", f"a {kind} name consists of small letters, digits, - and _, not {name!r}")
    if name in entries and not _again(entries[name], target):
        raise ArgumentError("name", f"there is a {kind} {name!r} already; choose another name")


def _again(entry: Entry, target: object) -> bool:
    """Whether the same class or function is registered again, as when a cell of a notebook is run twice."""
    places = [(getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (entry.target, target)]
    return not isinstance(entry.target, str) and places[0] == places[1]


def _check_options(
    argument: str, options: Sequence[Option[Any]], alike: Iterable[Option[Any]], unlike: Iterable[Option[Any]]
) -> None:
    """Raise a ValueError for an option whose flag would be ambiguous, or that cannot take its own default.

    It may share its name with an option of the same kind, of another method, say, but of no other kind.
    """
    alike = list(alike)
    elsewhere = {name for option in unlike for name in (option.name, option.formerly)}
    taken = {*RESERVED, *elsewhere, *(option.formerly for option in alike)}
    for option in options:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", option.name) or option.kind not in (int, float, str):
            raise ArgumentError(
                argument, f"{option.name!r} needs a name of small letters, digits and _, and an int, float or str"
            )
        if option.name in taken:
            raise ArgumentError(argument, f"{option.name!r} is taken by something else; choose another name")
        kinds = {(one.kind, one.several) for one in alike if one.name == option.name}
        if kinds - {(option.kind, option.several)}:
            raise ArgumentError(argument, f"another {option.name!r} takes {_kind(kinds)}; rename this one")
        if option.default is not None:
            option.check(option.default)


def _check_takes(argument: str, target: Callable[..., Any], given: list[str], optional: Sequence[str] = ()) -> None:
    """Raise a ValueError unless a class or function can be called with the given arguments, all by name."""
    parameters = inspect.signature(target).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    name = getattr(target, "__name__", repr(target))
    for argument_name in given:
        if argument_name not in named:
            raise ArgumentError(argument, f"{name} takes no argument {argument_name!r}")
    for p in parameters:
        needed = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if needed and p.name not in (*given, *optional):
            raise ArgumentError(argument, f"{name} needs {p.name!r}: describe it by an Option, or give it a default")


def _kind(kinds: set[tuple[type, bool]]) -> str:
    return " or ".join(f"{'several ' if several else ''}{kind.__name__}" for kind, several in kinds)


def _first_line(target: object) -> str:
    return inspect.cleandoc(target.__doc__ or "").partition("\n")[0]
