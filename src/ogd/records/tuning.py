"""What `ogd tune` found: a score for every value and run, and the value it chose."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ogd.records import request as requests
from ogd.records.files import write_text
from ogd.records.record import SCHEMA, environment
from ogd.records.request import Request


@dataclass(frozen=True)
class Tuning:
    """Validation accuracy `scores[run][i]` of `grid[i]`, averaged over tasks; None where the weights diverged."""

    request: Request
    grid: list[float]
    scores: list[list[float | None]]

    @property
    def means(self) -> list[float | None]:
        columns = zip(*self.scores, strict=True)
        return [None if None in column else float(np.mean(column)) for column in columns]

    @property
    def choice(self) -> float:
        """The value with the best mean score; one that diverged in any run is out."""
        found = [(mean, value) for mean, value in zip(self.means, self.grid, strict=True) if mean is not None]
        if not found:
            raise ArithmeticError(f"every value of the grid diverged: {self.grid}")
        return max(found, key=lambda pair: (pair[0], -pair[1]))[1]  # of equals the smaller


def write(tuning: Tuning, folder: Path) -> Path:
    """Keep a tuning as `<method>-<benchmark>.json`."""
    path = folder / f"{tuning.request.method}-{tuning.request.benchmark}.json"
    value = {"schema": SCHEMA, **asdict(tuning), "choice": tuning.choice, "environment": environment()}
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")
    return path


def read(path: Path) -> Tuning:
    """Read a tuning; a file that is not one is a ValueError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA:
            raise ValueError(f"it has schema {value['schema']!r} and this version of ogd reads {SCHEMA}")
        return Tuning(requests.from_json(value["request"]), value["grid"], value["scores"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a usable record of a tuning: {error}") from error
