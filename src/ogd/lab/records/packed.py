"""Many records in one file, `<name>.runs.jsonl`: a line for each, which is what a file of its own would hold."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from ogd import json_files
from ogd.files import write_text
from ogd.json_files import BadFile
from ogd.lab.records import schema
from ogd.lab.records.record import RunRecord, from_json

SUFFIX = ".runs.jsonl"


@dataclass(frozen=True)
class Line:
    """One record of a packed file; lines count from 1, and are 0 before they are written."""

    path: Path
    number: int
    text: str
    record: RunRecord

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"


def paths(folder: Path) -> list[Path]:
    """Return the packed files of a folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read(path: Path) -> list[Line]:
    """Read a packed file; a line that is no record, or that only a newer version of ogd can read, is a ValueError."""
    lines = []
    for line in read_each(path):
        if isinstance(line, BadFile):
            raise line
        lines.append(line)
    return lines


def read_each(path: Path) -> Iterator[Line | BadFile]:
    """Yield the lines of a packed file, and an error in the place of each that cannot be used."""
    number = 0
    for number, content in enumerate(json_files.lines(path), 1):
        try:
            record = schema.converted(content, path, "record", from_json, line=number)
        except BadFile as error:
            yield error
        else:
            yield Line(path, number, content.decode().strip(), record)
    if not number:
        yield BadFile(path, f"{path} is not a usable file of records: it is empty; remove it to run them again")


def write(lines: Iterable[Line]) -> None:
    """Write packed files of these lines and no others, sorted by what was asked, number by number, and by run."""
    files: dict[Path, list[tuple[str, int, str]]] = {}
    for line in lines:
        asked = re.sub(r"\d+", lambda digits: digits[0].zfill(12), json.dumps(asdict(line.record.request)))
        files.setdefault(line.path, []).append((asked, line.record.run, line.text))
    for path, sortable in files.items():
        content = "".join(f"{text}\n" for _, _, text in sorted(sortable))
        if not path.exists() or path.read_bytes() != content.encode():
            write_text(path, content)


def by_setting(folder: Path) -> Mapping[str, Mapping[int, Line]]:
    """Return the lines of a folder's packed files, by the key of their request and by run.

    Files are read again where they have changed.
    """
    found = [(path, path.stat()) for path in paths(folder)]
    return _by_setting(tuple((path, stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found))


@lru_cache(maxsize=4)
def _by_setting(files: tuple[tuple[Path, int, int, int], ...]) -> dict[str, dict[int, Line]]:
    found: dict[str, dict[int, Line]] = {}
    for path, *_ in files:
        for line in read(path):
            runs = found.setdefault(line.record.request.key, {})
            first = runs.setdefault(line.record.run, line)
            if line.record != first.record:
                raise conflict(line, first)
    return found


def conflict(place: object, other: object) -> ValueError:
    """Return the error that two places hold records of one run that differ."""
    return ValueError(f"{place} and {other} hold different results of one run; remove one of them")
