"""Read JSON files strictly: everything is checked, and an error names the file and the field.

A file, or a line of a file with one value per line, is at most 64 MiB of UTF-8, is nested at most 32 levels deep, and
takes at most 256 MiB of memory. Numbers are finite, whole numbers fit 64 bits, texts are Unicode, and no object has
a duplicate key.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ogd.checks import MOST_WHOLE, ArgumentError
from ogd.files import SPECIAL, is_special
from ogd.visible_text import is_unicode

MOST_BYTES = 64 * 2**20
MOST_MEMORY = 256 * 2**20
MOST_DEPTH = 32
MEMORY = {b"[": 72, b"{": 72, b":": 100, b",": 40, b'"': 20}  # bytes of the Python objects behind each mark
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class FieldError(ArgumentError):
    """A field has a wrong value; its name is "" if the whole file is wrong."""

    @property
    def field(self) -> str:
        return self.name


class BadFile(ValueError):
    """A file cannot be used; `field` is the wrong part, or "" for the whole file."""

    def __init__(self, path: Path, message: str, field: str = "") -> None:
        super().__init__(message)
        self.path, self.field = path, field


def load(path: Path, kind: str = "JSON file") -> Any:
    """Return the value in a file, or raise a `BadFile`."""
    if is_special(path):
        raise BadFile(path, f"{path} is not a usable {kind}: it is {SPECIAL}")
    try:
        return parse(content(path))
    except FieldError as error:
        raise BadFile(path, f"{path} is not a usable {kind}: {shorten(error)}", error.field) from error


def content(path: Path) -> bytes:
    """Return the text of a file, cut after MOST_BYTES + 1 bytes, which `parse` refuses."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; cut a line after MOST_BYTES + 1 bytes, and end with it."""
    if is_special(path):
        raise BadFile(path, f"{path} is not a usable file of records: it is {SPECIAL}")
    with path.open("rb") as file:
        while line := file.readline(MOST_BYTES + 1):
            yield line
            if len(line) > MOST_BYTES:
                return


def parse(content: bytes) -> Any:
    """Return the value of a JSON text, or raise a `FieldError`.

    Examples:
        >>> parse(b'{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
        >>> parse(b'{"a": [1, 1e999]}')
        Traceback (most recent call last):
        ogd.json_files.FieldError: a[1]: must be a finite number, not inf
    """
    if len(content) > MOST_BYTES:
        raise FieldError("", f"it is larger than {MOST_BYTES:,} bytes")
    if memory(content) > MOST_MEMORY:
        raise FieldError("", f"it would take more than {MOST_MEMORY:,} bytes of memory")
    try:
        value = json.loads(content.decode(), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise FieldError("", f"it is not UTF-8 text (byte {error.start:,})") from error
    except RecursionError as error:
        raise FieldError("", f"it is nested more than {MOST_DEPTH} deep") from error
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError("", f"it is not JSON ({error})") from error
    _check(value)
    return value


def memory(content: bytes) -> int:
    r"""Return an upper bound of the memory that parsing a text takes, besides the text itself.

    One letter beyond Latin-1 makes all letters of a string up to four bytes wide; it may be written as \u….

    Examples:
        >>> memory(b'"ab"'), memory('"aλ"'.encode()), memory(rb'["\u03bb", 1]')
        (48, 80, 226)
    """
    text = 2 * len(content) * (1 if content.isascii() else 4)
    wide = 6 * sum(found.end() - found.start() for found in STRING.finditer(content)) if b"\\u" in content else 0
    return text + wide + sum(each * content.count(mark) for mark, each in MEMORY.items())


def text(value: Any, field: str, most: int = 10_000) -> str:
    """Return a text, or raise a `FieldError`."""
    if not isinstance(value, str) or len(value) > most:
        raise FieldError(field, f"must be a text of at most {most:,} letters, not {short_repr(value)}")
    return value


def number(value: Any, field: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number, or raise a `FieldError`.

    Examples:
        >>> number(None, "median", 0)
        Traceback (most recent call last):
        ogd.json_files.FieldError: median: must be a number of at least 0, not None
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        bounds = f" of at least {least:g}" if least > -math.inf else ""
        bounds += f"{' and' if bounds else ' of'} at most {most:g}" if most < math.inf else ""
        raise FieldError(field, f"must be a number{bounds}, not {short_repr(value)}")
    return value


def whole(value: Any, field: str, least: int = 0, most: int = MOST_WHOLE) -> int:
    """Return a whole number, or raise a `FieldError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bounds = f"at least {least}" + (f" and at most {most:,}" if most < MOST_WHOLE else "")
        raise FieldError(field, f"must be a whole number of {bounds}, not {short_repr(value)}")
    return value


def truth(value: Any, field: str) -> bool:
    """Return True or False, or raise a `FieldError`."""
    if not isinstance(value, bool):
        raise FieldError(field, f"must be true or false, not {short_repr(value)}")
    return value


def items(value: Any, field: str, count: int | None = None) -> list[Any]:
    """Return a list, of `count` items if that is given, or raise a `FieldError`."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        wanted = "a list" if count is None else f"a list of {count:,}"
        found = f"{len(value):,}" if isinstance(value, list) else short_repr(value)
        raise FieldError(field, f"must be {wanted}, not {found}")
    return value


def fields(value: Any, field: str) -> dict[str, Any]:
    """Return an object, or raise a `FieldError`."""
    if not isinstance(value, dict):
        raise FieldError(field, f"must be an object, not {short_repr(value)}")
    return value


def short_repr(value: object, most: int = 60) -> str:
    """Return a value as a short text of one line, for a message.

    Examples:
        >>> short_repr("a" * 100, 10), short_repr([1])
        ("'aaaaaaaa…", 'a list of 1')
    """
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    return shorten(repr(value), most)


def shorten(message: object, most: int = 400) -> str:
    """Cut a message that may hold a long value of a file.

    Examples:
        >>> shorten("must be a number, not 'aaaaaaaa'", 28)
        "must be a number, not 'aaaa…"
    """
    written = str(message)
    return written if len(written) <= most else f"{written[: most - 1]}…"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        (twice, *_) = (name for name in made if names.count(name) > 1)
        raise FieldError(short_repr(twice), "is a duplicate key")
    return made


def _check(value: Any, where: tuple[str | int, ...] = ()) -> None:
    """Raise a `FieldError` that names the first part that is nested too deep or has an impossible value."""
    if len(where) > MOST_DEPTH:
        raise FieldError(_named(where[:4]), f"is nested more than {MOST_DEPTH} deep")
    for key, item in _inside(value):
        if isinstance(item, list | dict):
            _check(item, (*where, key))
        elif problem := _problem(item) or _problem(key):
            raise FieldError(_named((*where, key)), problem)
    if problem := _problem(value):
        raise FieldError("", problem)


def _inside(part: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(part, dict):
        return iter(part.items())
    return iter(enumerate(part)) if isinstance(part, list) else iter(())


def _problem(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be a finite number, not {value}"
    if isinstance(value, int) and abs(value) > MOST_WHOLE:
        return "is a whole number beyond 64 bits"
    if isinstance(value, str) and not is_unicode(value):
        return f"is not Unicode: {short_repr(value)}"
    return ""


def _named(where: tuple[str | int, ...]) -> str:
    """Return the path of a value: `ratios[3].median`."""
    written = ""
    for key in where:
        name = key if isinstance(key, str) and re.fullmatch("[A-Za-z_][A-Za-z_0-9]{,60}", key) else short_repr(key)
        written += f"[{key}]" if isinstance(key, int) else f".{name}" if written else name
    return written
