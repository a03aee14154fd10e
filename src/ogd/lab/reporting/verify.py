"""Whether a folder of records is whole: every file can be read, is under its own name, and no run is missing."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ogd import json_files
from ogd.checks import ArgumentError
from ogd.lab.catalogue import METHODS
from ogd.lab.records import RunRecord, packed, speed, tuning
from ogd.lab.records.record import read_journal, read_placed
from ogd.lab.reporting.collect import found_in
from ogd.lab.reporting.compare import compare
from ogd.lab.reporting.index import setting

MOST_NAMED = 10  # runs that one line says are missing
Placed = tuple[str, RunRecord]  # where a record is, and the record


@dataclass
class Verdict:
    """What a folder holds, and a line for whatever is wrong with it."""

    records: int = 0
    settings: int = 0
    others: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.records:,} records of {self.settings:,} settings and {self.others:,} other files"


def verify(folder: Path) -> Verdict:
    """Check every file of a folder of records; nothing is written, and nothing trained."""
    if not folder.is_dir():
        raise ArgumentError("dir", f"there is no folder {str(folder)!r}")
    verdict, kept = Verdict(), defaultdict[str, dict[int, Placed]](dict)
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors" or path.name.startswith(".") or path.match("unit-*.json"):
            verdict.problems.append(f"{path}: a killed command left it; run that command again")
        for found in _contents(path, folder):
            if found is None:
                verdict.others += 1
            elif isinstance(found, ValueError):
                verdict.problems.append(str(found))
            else:
                place, record = found
                other, first = kept[record.request.key].setdefault(record.run, found)
                verdict.problems += [str(packed.conflict(place, other))] if record != first else []
    verdict.records, verdict.settings = sum(map(len, kept.values())), len(kept)
    verdict.problems += [problem for runs in kept.values() for problem in _gaps(runs)]
    if kept and not verdict.problems:
        verdict.problems += _unfinished(folder)
    return verdict


def _contents(path: Path, folder: Path) -> Iterator[Placed | ValueError | None]:
    """Yield the records of a file, an error for each that cannot be used, or None where it is another file of ours."""
    if path.name.startswith("."):
        return
    if path.name.endswith(packed.SUFFIX):
        if path.parent != folder:
            yield ValueError(f"{path} is found by no command: its place is {folder / path.name}")
        for line in packed.read_each(path):
            yield line if isinstance(line, ValueError) else (str(line), line.record)
    elif path.suffix == ".json":
        try:
            if path.match("run-*.json"):
                yield str(path), read_placed(path, folder)
            else:
                _check_other(path)
                yield None
        except ValueError as error:
            yield error


def _gaps(runs: dict[int, Placed]) -> Iterator[str]:
    """Say which runs a setting lacks before its last."""
    missing = list(islice((run for run in range(max(runs)) if run not in runs), MOST_NAMED))
    if missing:
        place, record = runs[max(runs)]
        told = f"{METHODS[record.request.method].label} on {setting(record.request)}"
        yield f"{place}: lacks run{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {told}"


def _check_other(path: Path) -> None:
    """Raise a ValueError unless a file that is no record can be read as what it is."""
    if path.match("unit-*.json"):
        read_journal(path)
        return
    names = set(json_files.fields(json_files.load(path), str(path)))
    if path.name == "speed.json" or {"schema", "ratios"} <= names:
        speed.read(path)
    elif {"schema", "scores"} <= names:
        found = tuning.read(path)
        if tuning.path_of(found, path.parent) != path:
            raise ValueError(
                f"{path} holds another setting's result: its place is {tuning.path_of(found, path.parent)}"
            )


def _unfinished(folder: Path) -> list[str]:
    """Say which tables and figures have more runs of one setting than of another.

    One that has less than half of its settings was not asked for: experiments share settings.
    """
    problems = []
    for found in found_in(folder):
        counts = {len(runs) for answer in found.answers for runs in answer.runs}
        if len(counts) > 1 and found.share >= 0.5:
            problems += [f"{found.experiment.name}: {line}" for line in compare(found).missing]
    return problems
