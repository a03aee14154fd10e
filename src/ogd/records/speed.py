"""What `ogd bench` measured: ratios, and with what versions they were taken."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ogd.files import write_text
from ogd.records.record import SCHEMA, environment


@dataclass(frozen=True)
class Ratio:
    """One measured ratio: the median over interleaved repeats, and the smallest and largest of them."""

    key: str
    median: float
    low: float
    high: float
    meaning: str


def write(ratios: Sequence[Ratio], path: Path) -> None:
    """Keep a measurement."""
    value = {"schema": SCHEMA, "ratios": [asdict(ratio) for ratio in ratios], "environment": environment()}
    write_text(path, json.dumps(value, indent=1) + "\n")


def read(path: Path) -> list[Ratio]:
    """Read a measurement; a file that is not one is a ValueError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema"] != SCHEMA:
            raise ValueError(f"it has schema {value['schema']!r} and this version of ogd reads {SCHEMA}")
        return [Ratio(**ratio) for ratio in value["ratios"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a usable record of speeds: {error}") from error
