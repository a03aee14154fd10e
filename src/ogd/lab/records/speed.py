"""What `ogd bench` measured: ratios, and with what versions they were taken."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.files import write_text
from ogd.lab.records import schema
from ogd.lab.records.record import environment


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
    value = {"schema": schema.SCHEMA, "ratios": [asdict(ratio) for ratio in ratios], "environment": environment()}
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read(path: Path) -> list[Ratio]:
    """Read a measurement; a file that is not one, or that only a newer version of ogd can read, is a ValueError."""
    return schema.read(path, "record of speeds", from_json)


def from_json(value: Any) -> list[Ratio]:
    """Check and convert what `json.loads` gave."""
    schema.check_schema(value)
    schema.check_known(value, ["schema", "ratios", "environment"], "field", "it")
    if "ratios" not in value:
        raise ValueError("it lacks ratios")
    return [_ratio(ratio, f"ratios[{i}]") for i, ratio in enumerate(json_files.items(value["ratios"], "ratios"))]


def _ratio(value: Any, where: str) -> Ratio:
    schema.check_fields(value, Ratio, where)
    key, meaning = (json_files.text(value[name], f"{where}.{name}") for name in ("key", "meaning"))
    median, low, high = (json_files.number(value[name], f"{where}.{name}", 0) for name in ("median", "low", "high"))
    return Ratio(key, median, low, high, meaning)
