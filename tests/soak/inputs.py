"""Mutated inputs through every reader, in this process: each is read as it was, read as something valid, or refused."""

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conftest import write_tiny
from ogd.lab import data
from readers import Reader, data_readers, json_readers
from tensor_readers import checkpoint_reader, memory_readers

Tell = Callable[[int, str], None]
PARTS = 100
MOST_KEPT = 20  # failures that are written down


def made(folder: Path) -> list[Reader]:
    """All readers, with their files in a folder."""
    torch.set_num_threads(1)
    source = write_tiny(folder / "source", n=40, m=10)
    dataset = data.load(source)
    return [
        *json_readers(folder, dataset),
        *data_readers(folder, source),
        *memory_readers(folder),
        checkpoint_reader(folder, dataset),
    ]


def attack(readers: list[Reader], count: int, seed: int, found: dict[str, Any], tell: Tell) -> None:
    """Give the readers so many inputs in all, going on from what `found` says is done."""
    whole = sum(reader.share for reader in readers)
    for part in range(1, PARTS + 1):  # all readers in turn, so that what is done at any moment is of all of them
        for reader in readers:
            wanted = -(-count * reader.share * part // (whole * PARTS))
            state = found.setdefault(reader.name, {"inputs": 0, "read": 0, "refused": 0, "failed": 0, "failures": []})
            for number in range(state["inputs"], wanted):
                state[one(reader, seed, number, state)] += 1
                state["inputs"] = number + 1
                tell(1, f"inputs: {reader.name}")


def one(reader: Reader, seed: int, number: int, state: dict[str, Any]) -> str:
    """One input; the same seed, reader and number give the same one."""
    try:
        return reader.attack(random.Random(f"{seed}/{reader.name}/{number}"))
    except Exception as error:
        if len(state["failures"]) < MOST_KEPT:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            state["failures"].append(f"input {number}: {type(error).__name__} at {where}: {str(error)[:300]}")
        return "failed"
