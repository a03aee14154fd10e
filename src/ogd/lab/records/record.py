"""One JSON file per run: what was asked, what came out, with what versions. docs/records.md describes the schema."""

import json
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.files import sweep, write_text
from ogd.lab.records import request as requests
from ogd.lab.records import schema
from ogd.lab.records.request import Request
from ogd.lab.records.schema import SCHEMA
from ogd.version import __version__


@dataclass(frozen=True)
class Curve:
    """Accuracy while training: `accuracy[k][j]` on task j after `steps[k]` steps; None before task j began."""

    steps: list[int]
    accuracy: list[list[float | None]]


@dataclass(frozen=True)
class RunRecord:
    """The result of one run; everything shown is derived from records alone."""

    request: Request
    run: int
    accuracy: list[list[float]]  # (1 + tasks, tasks), fractions; row i: after i tasks
    curve: Curve | None
    seconds: float  # wall time of the whole group of runs
    lockstep: int  # how many runs that group trained at once
    environment: dict[str, str | None]  # a field that comes later needs a default: what these records did
    dead: bool = False  # the same outputs for most test inputs of every task; written only if true

    def path(self, folder: Path) -> Path:
        return folder_of(self.request, folder) / f"run-{self.run}.json"


def write(record: RunRecord, folder: Path) -> Path:
    """Write a record under `folder`, whole or not at all, and return its path."""
    path = record.path(folder)
    write_text(path, json.dumps(to_json(record), allow_nan=False) + "\n")
    return path


def write_all(group: Sequence[RunRecord], folder: Path) -> None:
    """Write the records of one request that belong together so that a kill leaves all of them or none.

    They go into one journal first, which `recover` finishes copying. Half a group would be trained again in a smaller
    lockstep, and equal the other half's only to rounding.
    """
    journal = folder_of(group[0].request, folder) / f"unit-{'-'.join(str(record.run) for record in group)}.json"
    write_text(journal, json.dumps([to_json(record) for record in group], allow_nan=False) + "\n")
    for record in group:
        write(record, folder)
    journal.unlink(missing_ok=True)


def recover(folder: Path, request: Request) -> None:
    """Write what a killed process had not copied from its journals, and remove what it left half written."""
    sweep(folder_of(request, folder))
    for journal, found in journals(folder_of(request, folder)):
        for record in found:
            if record.request == request and not record.path(folder).exists():
                write(record, folder)
        journal.unlink(missing_ok=True)


def read_journal(path: Path) -> list[RunRecord]:
    """Read the records of a group that a killed process did not finish copying."""
    return schema.read(path, "journal", _group)


def journals(folder: Path) -> Iterator[tuple[Path, list[RunRecord]]]:
    """Yield the journals in a setting's folder, with their records."""
    for path in sorted(folder.glob("unit-*.json")):
        with suppress(FileNotFoundError):  # whoever wrote it is alive, and done with it
            yield path, read_journal(path)


def read(path: Path) -> RunRecord:
    """Read one record; a file that is not one, or that only a newer version of ogd can read, is a ValueError."""
    return schema.read(path, "record", from_json)


def read_placed(path: Path, folder: Path) -> RunRecord:
    """Read one record, which is a ValueError too where it is not under its own name in `folder`."""
    record = read(path)
    if record.path(folder) != path:
        place = record.path(folder)
        raise ValueError(
            f"{path} holds another setting's result: its place is {place}; remove it to run this one again"
        )
    return record


def to_json(record: RunRecord) -> dict[str, Any]:
    value = {"schema": SCHEMA, **asdict(record)}
    return value if record.dead else {name: part for name, part in value.items() if name != "dead"}


def from_json(value: Any) -> RunRecord:
    """Check and convert what `json.loads` gave."""
    schema.check_schema(value)
    schema.check_fields(value, RunRecord, "it", ["schema"])
    request = requests.from_json(value["request"])
    rows = json_files.items(value["accuracy"], "accuracy", request.tasks + 1)
    facts = json_files.fields(value["environment"], "environment")
    return RunRecord(
        request=request,
        run=json_files.whole(value["run"], "run"),
        accuracy=[schema.all_fractions(row, f"accuracy[{i}]", request.tasks) for i, row in enumerate(rows)],
        curve=_curve(value["curve"], request.tasks),
        seconds=json_files.number(value["seconds"], "seconds", 0),
        lockstep=json_files.whole(value["lockstep"], "lockstep", 1),
        environment={
            name: None if fact is None else json_files.text(fact, f"environment.{json_files.short_repr(name)}")
            for name, fact in facts.items()
        },
        dead=json_files.truth(value.get("dead", False), "dead"),
    )


@cache
def environment() -> dict[str, str | None]:
    """Return what a result may depend on besides the request: versions, machine, commit."""
    return {
        "ogd": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy")},
        "system": platform.system(),
        "machine": platform.machine(),
    }


def versions() -> dict[str, str | None]:
    """Return the part of the environment that may change a result's last digits."""
    return {name: environment()[name] for name in ("ogd", "torch", "numpy", "machine")}


def folder_of(request: Request, folder: Path) -> Path:
    """Return where the records of a request are kept under `folder`."""
    return folder / f"{request.benchmark}-{request.method}-{request.key}"


def _group(value: Any) -> list[RunRecord]:
    found = []
    for i, one in enumerate(json_files.items(value, "")):
        with schema.inside(f"[{i}]"):
            found.append(from_json(one))
    return found


def _curve(value: Any, tasks: int) -> Curve | None:
    if value is None:
        return None
    schema.check_fields(value, Curve, "its curve")
    listed = json_files.items(value["steps"], "curve.steps")
    steps = [json_files.whole(step, f"curve.steps[{k}]", 1) for k, step in enumerate(listed)]
    rows = json_files.items(value["accuracy"], "curve.accuracy", len(steps))
    return Curve(steps, [schema.fractions(row, f"curve.accuracy[{k}]", tasks) for k, row in enumerate(rows)])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this package runs from, with `+` where files differ from it."""
    here = Path(__file__).resolve().parents[2]
    if not (here.parents[1] / ".git").exists():
        return None  # installed, or inside somebody else's checkout

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None
