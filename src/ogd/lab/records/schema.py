"""Reading what another version of ogd wrote.

A field that came later has a default, which is what older versions did, so their records stay valid. What a newer
version wrote and this one does not know is an error that names the versions: leaving it out would change its meaning.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from ogd import json_files
from ogd.checks import ArgumentError
from ogd.files import SPECIAL, is_special
from ogd.json_files import BadFile, FieldError
from ogd.version import __version__
from ogd.visible_text import visible

SCHEMA = 1
T = TypeVar("T")


class Newer(ValueError):
    """This version of ogd does not know something that a record has."""

    def __init__(self, what: str, remedy: str = "upgrade ogd to read it") -> None:
        super().__init__(what)
        self.remedy = remedy


def read(path: Path, kind: str, convert: Callable[[Any], T]) -> T:
    """Read a JSON file and convert it; a `BadFile` names the file, what is wrong with it and what to do."""
    if is_special(path):
        raise BadFile(path, f"{path} is not a usable {kind}: it is {SPECIAL}; remove it to run it again")
    return converted(json_files.content(path), path, kind, convert)


def converted(content: bytes, path: Path, kind: str, convert: Callable[[Any], T], line: int | None = None) -> T:
    """Convert the text of a file, or of one of its lines, which a `BadFile` names too."""
    place, it = (f"{path}", "it") if line is None else (f"{path}, line {line}", "that line")
    value: Any = None
    try:
        value = json_files.parse(content)
        return convert(value)
    except Newer as error:
        what = f"{place} has {json_files.shorten(error)}, which this ogd ({__version__}) does not know"
        raise BadFile(path, f"{what}; ogd {_writer(value)} wrote it: {error.remedy}") from error
    except (ValueError, TypeError, KeyError) as error:
        field = error.field if isinstance(error, FieldError) else ""
        problem = f"{place} is not a usable {kind}: {json_files.shorten(error)}"
        raise BadFile(path, f"{problem}; remove {it} to run it again", field) from error


@contextmanager
def inside(field: str) -> Iterator[None]:
    """Turn an error that names an argument, such as `lr`, into one that names a field, `request.lr`."""
    try:
        yield
    except Newer:
        raise
    except ArgumentError as error:
        raise FieldError(f"{field}.{error.name}" if error.name else field, error.message) from error
    except ValueError as error:
        raise FieldError(field, str(error)) from error


def check_schema(value: Any) -> None:
    """Raise a ValueError unless this is an object with the schema number that this version writes."""
    if not isinstance(value, dict) or "schema" not in value:
        raise ValueError("it has no schema number")
    number = value["schema"]
    if number != SCHEMA or isinstance(number, bool):
        newer = isinstance(number, int) and number > SCHEMA
        raise (
            Newer(f"schema {number}")
            if newer
            else ValueError(f"its schema is {json_files.short_repr(number)}, not {SCHEMA}")
        )


def check_fields(value: Any, cls: type, what: str, more: Iterable[str] = ()) -> None:
    """Raise a ValueError unless an object has the fields of a dataclass, except those that have a default.

    `more` names fields that it may have besides.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    needed = [field.name for field in fields(cls) if field.default is field.default_factory is MISSING]
    if missing := [name for name in needed if name not in value]:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    check_known(value, {*(field.name for field in fields(cls)), *more}, "field", what)


def fractions(value: Any, field: str, count: int) -> list[float | None]:
    """Return so many numbers between 0 and 1, or None for one that is null."""
    row = json_files.items(value, field, count)
    return [None if a is None else float(json_files.number(a, f"{field}[{i}]", 0, 1)) for i, a in enumerate(row)]


def all_fractions(value: Any, field: str, count: int) -> list[float]:
    """Return so many numbers between 0 and 1."""
    row = json_files.items(value, field, count)
    return [float(json_files.number(a, f"{field}[{i}]", 0, 1)) for i, a in enumerate(row)]


def check_known(given: Iterable[str], known: Iterable[str], kind: str, what: str) -> None:
    """Raise `Newer` if a name is given that is not known."""
    if unknown := sorted(set(given) - set(known)):
        plural = "s" if len(unknown) > 1 else ""
        raise Newer(f"the {kind}{plural} {', '.join(map(json_files.short_repr, unknown[:5]))} in {what}")


def _writer(value: Any) -> str:
    """Return the version of ogd that a record says it was written by."""
    first = value[0] if isinstance(value, list) and value else value
    environment = first.get("environment") if isinstance(first, dict) else None
    written = environment.get("ogd") if isinstance(environment, dict) else None
    return visible(written) if isinstance(written, str) and len(written) < 40 else "of an unknown version"
