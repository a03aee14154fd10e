"""Whether a folder of records is whole: every file can be read, stands under its name, and no run is missing."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ogd import json_files
from ogd.lab.records import read, speed, tuning
from ogd.lab.records.record import read_journal
from ogd.lab.reporting.collect import found_in
from ogd.lab.reporting.compare import compare


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
        raise ValueError(f"dir: there is no folder {str(folder)!r}")
    verdict, runs = Verdict(), defaultdict[Path, set[int]](set)
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors" or path.name.startswith(".") or path.match("unit-*.json"):
            verdict.problems.append(f"{path}: a killed command left it; run that command again")
        if path.suffix != ".json" or path.name.startswith("."):
            continue
        try:
            run = _checked(path, folder)
        except ValueError as error:
            verdict.problems.append(str(error))
            continue
        if run is None:
            verdict.others += 1
        else:
            runs[path.parent].add(run)
    verdict.records, verdict.settings = sum(map(len, runs.values())), len(runs)
    for parent, there in runs.items():
        missing = sorted(set(range(max(there))) - there)
        if missing:
            verdict.problems.append(f"{parent}: lacks run{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}")
    if runs and not verdict.problems:
        verdict.problems += _unfinished(folder)
    return verdict


def _checked(path: Path, folder: Path) -> int | None:
    """Return the number of the run whose record a file is, or None where it is another file of ours."""
    if path.match("run-*.json"):
        record = read(path)
        if record.path(folder) != path:
            raise ValueError(f"{path} holds another setting's result: its place is {record.path(folder)}")
        return record.run
    if path.match("unit-*.json"):
        read_journal(path)
        return None
    names = set(json_files.fields(json_files.load(path), str(path)))
    if path.name == "speed.json" or {"schema", "ratios"} <= names:
        speed.read(path)
    elif {"schema", "scores"} <= names:
        found = tuning.read(path)
        if tuning.path_of(found, path.parent) != path:
            raise ValueError(
                f"{path} holds another setting's result: its place is {tuning.path_of(found, path.parent)}"
            )
    return None


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
