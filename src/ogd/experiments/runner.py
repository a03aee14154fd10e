"""Requests → records: trains what is not recorded yet, many runs at once."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ogd import records
from ogd.data import Dataset
from ogd.records import Request, RunRecord
from ogd.records.request import at_least

LOCKSTEP = 10  # runs trained at once; a larger stack falls out of the cache


def run(request: Request, runs: int, dataset: Dataset, out: Path, label: str = "") -> list[RunRecord]:
    """Return the records of runs 0 … runs−1 of a request, training only those that `out` does not hold."""
    done = records.find(out, request)
    missing = [r for r in range(runs) if r not in done]
    for start in range(0, len(missing), LOCKSTEP):
        from ogd.experiments import unit  # imports torch, which showing what is recorded does not need

        group = missing[start : start + LOCKSTEP]
        for record in unit.perform(request, group, dataset, label or f"{request.benchmark} {request.method}"):
            records.write(record, out)
            done[record.run] = record
    return [done[r] for r in range(runs)]


def check(requests: Sequence[Request], runs: int, dataset: Dataset, out: Path) -> None:
    """Raise a ValueError for whatever could not be carried out, before any work is done."""
    at_least(1, runs=runs)
    counts = np.bincount(dataset.train_labels)
    for request in requests:
        parts = request.partition or (dataset.classes,)
        smallest = min(int(counts[list(part)].sum()) for part in parts)
        if request.batch_size > smallest:
            raise ValueError(
                f"batch_size: {request.batch_size} is above the {smallest:,} training examples of the smallest task"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ValueError(f"out: cannot write to {out}: {error.strerror or error}") from error
