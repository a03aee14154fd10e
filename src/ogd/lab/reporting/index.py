"""Which records are where in a folder: their experiment and row, their method, their setting and how many runs."""

from dataclasses import MISSING, asdict, fields
from pathlib import Path

from ogd.lab import records
from ogd.lab.benchmarks.rules import task_names
from ogd.lab.catalogue import METHODS
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, quick
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import Request, find
from ogd.lab.records.folder import places, requests_at
from ogd.lab.records.request import HIDDEN, Schedule

INTRODUCTION = """# Records

`<experiment>.runs.jsonl` holds the records of a table or figure, one per line. What several of them ask for is in the
file of the first, and a folder has the runs of one setting. Only what differs from the defaults is listed. This page is
generated from the records."""
OTHER = "other"  # the file of what no experiment asks for
NAMED = ("benchmark", "method", "tasks", "angles", "partition", "settings", "options", "data", "data_sha256")


def index(folder: Path) -> str:
    """Return a Markdown page that says which records `folder` holds, and where."""
    asked = _asked()
    tables: dict[bool, list[str]] = {True: [], False: []}
    for place in places(folder):
        for request in requests_at(place):
            uses = [use for _, use in asked.get(request.key, [])]
            cells = [f"[{place.name}]({place.name})", *(["; ".join(uses)] if uses else [])]
            found = find(folder, request)
            dead = sum(record.dead for record in found.values())
            runs = f"{len(found)}, {dead} dead" if dead else str(len(found))
            cells += [METHODS[request.method].label, setting(request), runs]
            tables[bool(uses)].append(" | ".join(cells))
    parts = [INTRODUCTION]
    if tables[True]:
        parts += [
            "## Of tables and figures",
            _table("place | experiment: row | method | setting | runs", tables[True]),
        ]
    if tables[False]:
        parts += ["## Of other settings", _table("place | method | setting | runs", tables[False])]
    others = [file for file in folder.rglob("*.json") if not file.name.startswith("run-")]
    if others:
        names = ", ".join(f"`{file.relative_to(folder).as_posix()}`" for file in sorted(others))
        parts += ["## Other files", f"{names}."]
    return "\n\n".join(parts) + "\n"


def pack(folder: Path) -> None:
    """Pack the records of a folder: a setting goes to the file of the first experiment that asks for it."""
    asked = _asked()
    records.pack(folder, lambda request: asked[request.key][0][0] if request.key in asked else OTHER)


def setting(request: Request) -> str:
    """Say what a request asks beyond its method, as far as it differs from the defaults.

    Examples:
        >>> from ogd.lab.experiments import resolve
        >>> setting(resolve("rotated", "ogd", load(), angles=(0, 30), per_task=20, init="glorot"))
        'rotated 0° 30°, init glorot, per_task 20'
    """
    return ", ".join(filter(None, [tasks_of(request), unusual(request)]))


def tasks_of(request: Request) -> str:
    """Name a request's benchmark and its tasks: `rotated 0° 30°`."""
    tasks = f"{request.tasks} tasks"
    if request.angles is not None or request.partition is not None:
        tasks = ("/" if request.partition else " ").join(task_names(request))
    return f"{request.benchmark} {tasks}"


def unusual(request: Request) -> str:
    """Say what differs from the defaults: `init glorot, per_task 20`."""
    usual = {field.name: field.default for field in (*fields(Request), *fields(Schedule))}
    usual |= {"hidden": HIDDEN[request.model], "heads": "multi"}
    said = {name: value for name, value in asdict(request).items() if name not in NAMED and value is not None}
    said |= request.settings
    options = {option.name: option.default for option in METHODS[request.method].options}
    others: list[tuple[str, object]] = [("data", request.data)] if request.data != "mnist" else []
    others += [(name, value) for name, value in said.items() if value != usual.get(name, MISSING)]
    others += [(name, value) for name, value in request.options.items() if value != options.get(name)]
    return ", ".join(f"{name} {_told(value)}" for name, value in others)


def _asked() -> dict[str, list[tuple[str, str]]]:
    """Return what asks for a setting, by its key: experiments, first at full scale, and how their rows are named."""
    dataset = load("mnist")
    asked: dict[str, dict[tuple[str, str], None]] = {}
    for profile, mark in ((lambda experiment: experiment, ""), (quick, " (quick)")):
        for experiment in EXPERIMENTS.values():
            for trained in profile(experiment).trained:
                part = f", {trained.name}" if trained.name != experiment.name else ""
                for row in trained.rows:
                    for request in requests_of(row, dataset):
                        use = f"{experiment.name}{part}{mark}: {row.label}".replace("|", r"\|")
                        asked.setdefault(request.key, {})[experiment.name, use] = None
    return {key: list(uses) for key, uses in asked.items()}


def _told(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_told, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(heads: str, rows: list[str]) -> str:
    return "\n".join(f"| {row} |" for row in (heads, " | ".join("---" for _ in heads.split("|")), *rows))
