"""Check arguments; an error names the argument and what it must be."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

MOST_WHOLE = 2**63 - 1  # the largest whole number in files and tensors


class ArgumentError(ValueError):
    """An argument cannot be used; `name` is its name, `message` tells why and what it must be.

    Examples:
        >>> str(ArgumentError("epochs", "must be at least 1, not 0"))
        'epochs: must be at least 1, not 0'
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name, self.message = name, message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.name else self.message


def is_whole(value: object, least: float = 0) -> bool:
    """Return whether a value is a whole number of at least `least`; True and False are not numbers.

    Examples:
        >>> is_whole(3), is_whole(3.0), is_whole(True), is_whole(0, 1)
        (True, False, False, False)
    """
    whole = _whole(value)
    return whole is not None and whole >= least


def is_number(value: object) -> bool:
    """Return whether a value is a finite real number.

    Examples:
        >>> is_number(0.5), is_number(float("nan")), is_number("1"), is_number(10**400)
        (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def check_whole(least: int, *, optional: Sequence[str] = (), **arguments: Any) -> None:
    """Raise an ArgumentError unless each argument is a whole number of at least `least` that fits 64 bits."""
    for name, value in arguments.items():
        if value is None and name in optional:
            continue
        whole = _whole(value)
        if whole is None:
            raise ArgumentError(name, f"must be a whole number, not {value!r}")
        if whole < least:
            raise ArgumentError(name, f"must be at least {least}, not {value}")
        if whole > MOST_WHOLE:
            raise ArgumentError(name, f"must be at most {MOST_WHOLE:,}, not {value!r:.40}")


def whole_number(value: Any, least: int = 0) -> int:
    """Return a whole number read from a file, or raise a ValueError."""
    if not is_whole(value, least):
        raise ValueError(f"the file holds {value!r} where a whole number of at least {least} belongs")
    return int(value)


def check_name(argument: str, name: object, names: Iterable[str]) -> None:
    """Raise an ArgumentError that suggests a similar name unless `name` is one of `names`."""
    names = list(names)
    if not isinstance(name, str):
        raise ArgumentError(argument, f"must be one of {', '.join(names)}, not {name!r}")
    if name in names:
        return
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"it is one of {', '.join(names)}"
    raise ArgumentError(argument, f"there is no {name!r}; {hint}")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that somebody who wrote `name` may have meant, or None.

    Examples:
        >>> nearest("rotatedd", ["permuted", "rotated"]), nearest("table9", ["angles", "rotated"])
        ('rotated', None)
    """
    return next(iter(difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.65)), None)


def _whole(value: Any) -> int | None:
    try:  # accepts NumPy's integers and tensors of one integer; a tensor of a float raises TypeError
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
