"""What `ogd tune` found: a score for every value and run, and the value it chose."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ogd.files import write_text
from ogd.records import request as requests
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
    def choice(self) -> float | None:
        """The value with the best mean score; one that diverged in any run is out, and None where all did."""
        found = [(mean, value) for mean, value in zip(self.means, self.grid, strict=True) if mean is not None]
        return max(found, key=lambda pair: (pair[0], -pair[1]))[1] if found else None  # of equals the smaller


def path_of(request: Request, folder: Path) -> Path:
    """Return where a tuning is kept: `<method>-<benchmark>.json`."""
    return folder / f"{request.method}-{request.benchmark}.json"


def write(tuning: Tuning, folder: Path) -> None:
    """Keep a tuning, in the place of an earlier one of this method on this benchmark."""
    value = {"schema": SCHEMA, **asdict(tuning), "choice": tuning.choice, "environment": environment()}
    write_text(path_of(tuning.request, folder), json.dumps(value, indent=1, allow_nan=False) + "\n")


def read(path: Path) -> Tuning:
    """Read a tuning; a file that is not one is a ValueError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA:
            raise ValueError(f"it has schema {value['schema']!r} and this version of ogd reads {SCHEMA}")
        grid, scores = value["grid"], value["scores"]
        if not isinstance(scores, list) or any(
            len(row) != len(grid) or not all(a is None or 0 <= a <= 1 for a in row) for row in scores
        ):
            raise ValueError("its scores are not a fraction or null for every value and run")
        return Tuning(requests.from_json(value["request"]), grid, scores)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is not a usable record of a tuning: {error}; remove it to run it again") from error
