"""What `ogd bench` measured: ratios, and with what versions they were taken."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ogd.files import write_text
from ogd.records import schema
from ogd.records.record import environment


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
    write_text(path, json.dumps(value, indent=1) + "\n")


def read(path: Path) -> list[Ratio]:
    """Read a measurement; a file that is not one, or that only a newer version of ogd can read, is a ValueError."""
    return schema.read(path, "record of speeds", from_json)


def from_json(value: Any) -> list[Ratio]:
    """Check and convert what `json.loads` gave."""
    schema.check_schema(value)
    schema.check_known(value, ["schema", "ratios", "environment"], "field", "it")
    for ratio in value["ratios"]:
        schema.check_fields(ratio, Ratio, "a ratio")
    return [Ratio(**ratio) for ratio in value["ratios"]]
