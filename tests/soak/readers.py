"""Every reader of the package, each with sound files to begin from and with what it may say about a spoiled one."""

import contextlib
import io
import json
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutate
from ogd import json_files
from ogd.json_files import BadFile
from ogd.lab import cli, data, records
from ogd.lab.experiments import resolve
from ogd.lab.records import packed, schema, speed, tuning
from ogd.lab.records import request as requests
from ogd.lab.records.record import Curve, RunRecord, from_json, read_journal, to_json


class Broken(AssertionError):
    """A reader did something that it must not do."""


@dataclass
class Reader:
    """A way into the package.

    `spoil` writes a spoiled file and says whether what is read may differ from the original. `read` returns what was
    read, or raises; `refuses` are the errors it may raise, whose text must hold the path. `same` and `use` look at
    what was read all the same.
    """

    name: str
    share: int  # of all inputs
    spoil: Callable[[random.Random], bool]
    read: Callable[[], Any]
    place: str  # which an error must name
    same: Callable[[Any], bool] = lambda _: True
    use: Callable[[Any], None] = lambda _: None
    refuses: type[Exception] = BadFile

    def attack(self, rng: random.Random) -> str:
        """Return "read" or "refused", or raise what must not happen."""
        may_differ = self.spoil(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = self.read()
            except self.refuses as error:
                if self.place not in str(error) or len(str(error)) > 2_000 or "\x1b" in str(error):
                    raise Broken(f"an error without the file's name, or too long: {str(error)[:300]}") from error
                return "refused"
            if found is None:
                return "refused"
            if not self.same(found):
                if not may_differ:
                    raise Broken("a damaged file was read as something else")
                self.use(found)
        return "read"


def json_readers(folder: Path, dataset: data.Dataset) -> list[Reader]:
    """Records, journals, tunings, speeds, requests, and JSON of any other kind."""
    curve = Curve([5, 10], [[0.1, None], [0.2, 0.3]])
    record = RunRecord(
        resolve("split", "ogd", dataset, tasks=2, curve_every=5), 0, [[0.5, 0.5]] * 3, curve, 1.5, 2, {"ogd": "1"}
    )
    other = RunRecord(resolve("rotated", "der", dataset, tasks=2), 1, [[0.25, 1]] * 3, None, 2, 1, {"torch": None})
    tuned = tuning.Tuning(resolve("rotated", "ewc", dataset, tasks=2), [1.0, 2.0], [[0.5, None], [0.25, 1.0]])
    tunings = json.loads(tuning.write(tuned, folder).read_text())
    ratio = {"key": "a", "median": 1.0, "low": 0.5, "high": 2, "meaning": "b"}
    speeds = {"schema": 1, "ratios": [ratio, {**ratio, "key": "c"}], "environment": {"ogd": "1"}}
    both = [to_json(record), to_json(other)]
    asked = [one["request"] for one in both]

    def again(found: RunRecord) -> None:
        if from_json(json.loads(json.dumps(to_json(found)))) != found:
            raise Broken("what was read is not what would be written")

    def tuned_again(found: tuning.Tuning) -> None:
        assert found.choice is None or found.choice in found.grid
        tuning.path_of(found, folder / "elsewhere")

    def read_request(path: Path) -> requests.Request:
        return schema.read(path, "request", requests.from_json)

    table: list[tuple[str, int, str, Sequence[Any], Callable[[Path], Any], Callable[[Any], None]]] = [
        ("records", 5, "run-0.json", both, records.read, again),
        (
            "packed records",
            3,
            "x.runs.jsonl",
            both,
            packed.read,
            lambda found: [again(one.record) for one in found] and None,
        ),
        ("journals", 3, "unit-0-1.json", [both], read_journal, lambda found: [again(one) for one in found] and None),
        ("tunings", 3, "tuning.json", [tunings], tuning.read, tuned_again),
        ("speeds", 3, "speed.json", [speeds], speed.read, lambda _: None),
        ("requests", 3, "request.json", asked, read_request, lambda found: found.key and None),
        ("other JSON", 2, "other.json", [tunings, both, speeds], json_files.load, lambda _: None),
    ]
    found = []
    for name, share, file, values, read, use in table:
        path = folder / file
        spoil = _json_spoiler(path, json.loads(json.dumps(list(values))))
        found.append(
            Reader(name, share, spoil, lambda read=read, path=path: read(path), str(path), lambda _: False, use)
        )
    found.append(_shown(folder / "shown.json", speeds))
    return found


def _json_spoiler(path: Path, values: Sequence[Any]) -> Callable[[random.Random], bool]:
    def spoil(rng: random.Random) -> bool:
        value = rng.choice(values)
        content = mutate.altered(value, rng) if rng.random() < 0.7 else mutate.spoiled(json.dumps(value).encode(), rng)
        path.write_bytes(content)
        return True  # a JSON file has no digest

    return spoil


def _shown(path: Path, value: Any) -> Reader:
    """The command line: a table, or one line that names the file, and nothing that steers a terminal."""

    def show() -> str | None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main(["bench", "--show", str(path)])
            except SystemExit as left:
                if left.code in (130, 143):  # whoever interrupts the attack while a command runs in it
                    raise KeyboardInterrupt from left
                if left.code == 2 and err.getvalue().startswith("ogd: ") and err.getvalue().count("\n") == 1:
                    raise ValueError(err.getvalue()) from left
                raise Broken(f"left with {left.code}: {err.getvalue()[:300]}") from left
        if "\x1b" in out.getvalue() + err.getvalue():
            raise Broken("it steers the terminal")
        return out.getvalue()

    return Reader("ogd bench --show", 1, _json_spoiler(path, [value]), show, str(path), refuses=ValueError)


def data_readers(folder: Path, source: Path) -> list[Reader]:
    """Data sets: IDX files, plain and compressed."""
    import gzip
    import struct

    files = {path.name: path.read_bytes() for path in source.iterdir()}
    found = []
    for zipped in (False, True):
        place = folder / ("zipped" if zipped else "plain")
        place.mkdir()

        def stored(content: bytes, zipped: bool = zipped) -> bytes:
            return gzip.compress(content, 1) if zipped else content

        suffix = ".gz" if zipped else ""
        whole = {f"{name}{suffix}": stored(content) for name, content in files.items()}
        for name, content in whole.items():
            (place / name).write_bytes(content)
        touched: list[str] = []

        def spoil(
            rng: random.Random, place: Path = place, whole: Any = whole, stored: Any = stored, touched: Any = touched
        ) -> bool:
            for name in touched:  # what the last input spoiled
                (place / name).write_bytes(whole[name])
            name = rng.choice(sorted(whole))
            touched[:] = [name]
            content = files[name.removesuffix(".gz")]
            if rng.random() < 0.5:
                (place / name).write_bytes(mutate.spoiled(whole[name], rng))
            elif rng.random() < 0.5:
                (place / name).write_bytes(stored(mutate.spoiled(content, rng)))
            else:  # another header, or another size in it
                sizes = [rng.choice((0, 1, 5, 6, 30, 60, 2**16, 2**31, 2**32 - 1)) for _ in range(rng.randrange(5))]
                header = struct.pack(f">HBB{len(sizes)}I", 0, rng.choice((8, 8, 8, 9, 13)), len(sizes), *sizes)
                (place / name).write_bytes(stored(header + content[rng.choice((4, 8, 16)) :]))
            return True

        def used(found: data.Dataset) -> None:
            assert len(found.train_images) == len(found.train_labels) > 0
            assert set(found.test_labels.tolist()) <= set(found.classes)

        name = "data sets, compressed" if zipped else "data sets"
        found.append(
            Reader(
                name,
                2,
                spoil,
                lambda place=place: data.load(place),
                str(place),
                lambda _: False,
                used,
                ValueError,
            )
        )
    return found
