"""Reading what another version of ogd wrote.

A field that came later has a default, which is what older versions did, so their records stay valid. What a newer
version wrote and this one does not know is an error that names the versions: leaving it out would change its meaning.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from ogd.version import __version__

SCHEMA = 1
T = TypeVar("T")


class Newer(ValueError):
    """This version of ogd does not know something that a record has."""

    def __init__(self, what: str, remedy: str = "upgrade ogd to read it") -> None:
        super().__init__(what)
        self.remedy = remedy


def read(path: Path, kind: str, convert: Callable[[Any], T]) -> T:
    """Read a JSON file and convert it; a ValueError names the file, what is wrong with it and what to do."""
    value: Any = None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return convert(value)
    except Newer as error:
        raise ValueError(
            f"{path} has {error}, which this ogd ({__version__}) does not know; ogd {_writer(value)} wrote it: "
            f"{error.remedy}"
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is not a usable {kind}: {error}; remove it to run it again") from error


def check_schema(value: Any) -> None:
    """Raise a ValueError unless this is an object with the schema number that this version writes."""
    if not isinstance(value, dict) or "schema" not in value:
        raise ValueError("it has no schema number")
    number = value["schema"]
    if number != SCHEMA:
        newer = isinstance(number, int) and number > SCHEMA
        raise Newer(f"schema {number}") if newer else ValueError(f"its schema is {number!r}, not {SCHEMA}")


def check_fields(value: Any, cls: type, what: str, more: Iterable[str] = ()) -> None:
    """Raise a ValueError unless an object has the fields of a dataclass, but for those that have a default.

    `more` names fields that it may have besides.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    needed = [field.name for field in fields(cls) if field.default is field.default_factory is MISSING]
    if missing := [name for name in needed if name not in value]:
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    check_known(value, {*(field.name for field in fields(cls)), *more}, "field", what)


def check_known(given: Iterable[str], known: Iterable[str], kind: str, what: str) -> None:
    """Raise `Newer` if a name is given that is not known."""
    if unknown := sorted(set(given) - set(known)):
        plural = "s" if len(unknown) > 1 else ""
        raise Newer(f"the {kind}{plural} {', '.join(map(repr, unknown))} in {what}")


def _writer(value: Any) -> str:
    """Return the version of ogd that a record says it was written by."""
    first = value[0] if isinstance(value, list) and value else value
    environment = first.get("environment") if isinstance(first, dict) else None
    written = environment.get("ogd") if isinstance(environment, dict) else None
    return str(written or "of an unknown version")
