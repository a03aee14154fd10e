"""What `ogd tune` found: a score for every value of an option and every run, and the value it chose."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ogd import json_files
from ogd.files import write_text
from ogd.lab.records import request as requests
from ogd.lab.records import schema
from ogd.lab.records.record import environment
from ogd.lab.records.request import Request, digest


@dataclass(frozen=True)
class Tuning:
    """Validation accuracy `scores[run][i]` of `grid[i]`, averaged over tasks; None if the run diverged or is dead."""

    request: Request
    grid: list[float]
    scores: list[list[float | None]]
    option: str = "ewc_lambda"  # which one the values are of; the first records had no other

    @property
    def means(self) -> list[float | None]:
        columns = zip(*self.scores, strict=True)
        return [None if None in column else float(np.mean(column)) for column in columns]

    @property
    def choice(self) -> float | None:
        """The value with the best mean score; one with a run that failed is out, and None if all are."""
        found = [(mean, value) for mean, value in zip(self.means, self.grid, strict=True) if mean is not None]
        return max(found, key=lambda pair: (pair[0], -pair[1]))[1] if found else None  # of equals the smaller

    def asks_like(self, other: "Tuning") -> bool:
        """Whether both are of one request, option and grid, so that their runs belong together."""
        return (self.request, self.grid, self.option) == (other.request, other.grid, other.option)


def path_of(tuning: Tuning, folder: Path) -> Path:
    """Return where a tuning is kept: `<method>-<benchmark>.json`, with a key where other settings have that place."""
    name = f"{tuning.request.method}-{tuning.request.benchmark}"
    plain = folder / f"{name}.json"
    if not plain.exists() or read(plain).asks_like(tuning):
        return plain
    return folder / f"{name}-{digest([tuning.request.key, tuning.option, tuning.grid])}.json"


def write(tuning: Tuning, folder: Path) -> Path:
    """Keep a tuning in the place of an earlier one that asked the same, and return its path."""
    value = {"schema": schema.SCHEMA, **asdict(tuning), "choice": tuning.choice, "environment": environment()}
    path = path_of(tuning, folder)
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
    return path


def read(path: Path) -> Tuning:
    """Read a tuning; a file that is not one, or that only a newer version of ogd can read, is a ValueError."""
    return schema.read(path, "record of a tuning", from_json)


def from_json(value: Any) -> Tuning:
    """Check and convert what `json.loads` gave."""
    schema.check_schema(value)
    schema.check_fields(value, Tuning, "it", ["schema", "choice", "environment"])
    request = requests.from_json(value["request"])
    option = json_files.text(value.get("option", Tuning.option), "option")
    if option not in request.options:
        raise ValueError(f"its option {json_files.short_repr(option)} is no option of {request.method}")
    grid = [json_files.number(x, f"grid[{i}]") for i, x in enumerate(json_files.items(value["grid"], "grid"))]
    if not grid:
        raise json_files.FieldError("grid", "must have a value")
    rows = json_files.items(value["scores"], "scores")
    if not rows:
        raise json_files.FieldError("scores", "must have a row")
    scores = [schema.fractions(row, f"scores[{run}]", len(grid)) for run, row in enumerate(rows)]
    return Tuning(request, grid, scores, option)
