"""A folder of records: files of single runs, as commands write them, and packed files, as they are kept for long."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ogd import files, json_files
from ogd.lab.records import packed
from ogd.lab.records.record import RunRecord, folder_of, journals, read, read_journal, read_placed
from ogd.lab.records.request import Request


def find(folder: Path, request: Request) -> dict[int, RunRecord]:
    """Return the records of `request` under `folder`, by run, also those that are only in a journal yet."""
    found: dict[int, RunRecord] = {}
    for _, group in journals(folder_of(request, folder)):
        found |= {record.run: record for record in group if record.request == request}
    for path in sorted(folder_of(request, folder).glob("run-*.json")):
        with suppress(FileNotFoundError):  # it was packed a moment ago
            record = read_placed(path, folder)
            found[record.run] = record
    lines = packed.by_setting(folder).get(request.key, {})  # last: a line is there before its file goes
    for run, line in lines.items():
        if found.setdefault(run, line.record) != line.record:
            raise packed.conflict(folder_of(request, folder) / f"run-{run}.json", line)
    return dict(sorted(found.items()))


def places(folder: Path) -> list[Path]:
    """Return what holds records under `folder`: packed files, and the folders of single settings."""
    singles = {path.parent for kind in ("run", "unit") for path in folder.glob(f"*/{kind}-*.json")}
    return [*packed.paths(folder), *sorted(singles)]


def place_of(request: Request, folder: Path) -> Path:
    """Return the packed file or the folder with the records of a request."""
    lines = packed.by_setting(folder).get(request.key, {})
    return next((line.path for line in lines.values()), folder_of(request, folder))


def requests_at(place: Path) -> list[Request]:
    """Return what the records of a place answer, also where a killed process left them in a journal."""
    if not place.is_dir():
        return list({line.record.request.key: line.record.request for line in packed.read(place)}.values())
    runs = sorted(place.glob("run-*.json"))
    found = [read(runs[0])] if runs else read_journal(min(place.glob("unit-*.json")))
    if not found:
        raise ValueError(f"{place} has a journal without records")
    return [found[0].request]


def pack(folder: Path, home: Callable[[Request], str]) -> None:
    """Move the files of single runs into packed files, whose lines are sorted by what was asked.

    A setting goes to `<home(request)>.runs.jsonl`, or where it has lines already. A kill loses nothing: one process
    packs at a time, and a file goes when its line can be read. Journals and checkpoints stay.
    """
    with files.lock_folder(folder):
        kept = packed.by_setting(folder)
        lines = [line for runs in kept.values() for line in runs.values()]
        place = {line.record.request.key: line.path for line in lines}
        singles = {path: read_placed(path, folder) for path in sorted(folder.glob("*/run-*.json"))}
        for path, record in singles.items():
            same = kept.get(record.request.key, {}).get(record.run)
            if same is None:
                into = place.setdefault(record.request.key, folder / f"{home(record.request)}{packed.SUFFIX}")
                lines.append(packed.Line(into, 0, json.dumps(json_files.load(path)), record))
            elif same.record != record:
                raise packed.conflict(path, same)
        packed.write(lines)
        kept = packed.by_setting(folder)
        for path, record in singles.items():
            if kept[record.request.key][record.run].record == record:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # there is more in it
                    path.parent.rmdir()
