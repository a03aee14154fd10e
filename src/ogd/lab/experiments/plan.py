"""Requests → units of work: what is not recorded yet, which units share their first task, and in which order."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ogd.lab import catalogue, records
from ogd.lab.benchmarks.rules import rules_of
from ogd.lab.data import Dataset
from ogd.lab.records import Request
from ogd.lab.records.record import versions
from ogd.lab.records.request import digest

LOCKSTEP = 10  # runs trained at once; a larger stack falls out of the cache
STACK_BYTES = 4e9  # of the runs trained at once, unless one takes more


@dataclass(frozen=True)
class Unit:
    """Runs of one request that train in lockstep: all of it, its "first" task alone, or the "rest" after that."""

    request: Request
    group: tuple[int, ...]
    sizes: tuple[int, ...]  # training examples of each task
    part: str = "all"

    @property
    def tasks(self) -> range:
        """The tasks it trains, counted from 0."""
        return range(1 if self.part == "rest" else 0, 1 if self.part == "first" else self.request.tasks)

    @property
    def cost(self) -> float:
        """Roughly, in run-steps of SGD: for the time left, and to begin with what takes longest."""
        weight = catalogue.METHODS[self.request.method].weight
        steps = [self.request.epochs * math.ceil(size / self.request.batch_size) for size in self.sizes]
        return len(self.group) * sum(steps[t] * weight(self.request.options, t) for t in self.tasks)

    @property
    def name(self) -> str:
        return f"{self.request.benchmark} {'first task' if self.part == 'first' else self.request.method}"

    @property
    def runs(self) -> str:
        return "-".join(map(str, self.group))

    @property
    def key(self) -> str:
        return f"{self.request.key}-{self.part}-{self.runs}"

    @property
    def first_key(self) -> str:
        """A digest of all that the first task depends on: neither the method nor the tasks that follow."""
        return digest([_first_task(self.request), self.group])

    @property
    def identity(self) -> str:
        """All that a checkpoint depends on: what is asked, the runs, and the versions it is computed with."""
        asked = _first_task(self.request) if self.part == "first" else asdict(self.request)
        return json.dumps([asked, self.group, versions()], sort_keys=True)

    def checkpoint(self, out: Path) -> Path:
        """Return where it keeps how far it is."""
        if self.part == "first":  # several requests share it
            return out / f"checkpoint-first-{self.first_key}-{self.runs}.safetensors"
        return records.folder_of(self.request, out) / f"checkpoint-{self.runs}.safetensors"


def plan(wanted: Sequence[tuple[Request, int]], dataset: Dataset, out: Path) -> tuple[list[Unit], list[Unit]]:
    """Return the first tasks that several units share, and the units: those that take longest come first.

    Units of one benchmark stand together, so that a process makes it once.
    """
    units = [unit for request, runs in wanted for unit in _missing(request, runs, dataset, out)]
    sharing = Counter(unit.first_key for unit in units)
    shared = [
        replace(unit, part="rest") if sharing[unit.first_key] > 1 and unit.request.tasks > 1 else unit for unit in units
    ]
    firsts = {unit.first_key: replace(unit, part="first") for unit in reversed(shared) if unit.part == "rest"}
    return _longest_first(list(firsts.values())), _longest_first(shared)


def _missing(request: Request, runs: int, dataset: Dataset, out: Path) -> Iterator[Unit]:
    done = records.find(out, request)
    missing = [r for r in range(runs) if r not in done]
    size = catalogue.METHODS[request.method].size(request.options, request.tasks)
    most = max(min(LOCKSTEP, int(STACK_BYTES // max(size, 1))), 1)
    for start in range(0, len(missing), most):
        yield Unit(request, tuple(missing[start : start + most]), rules_of(request.benchmark).sizes(request, dataset))


def _longest_first(units: list[Unit]) -> list[Unit]:
    def benchmark(unit: Unit) -> str:
        return digest([unit.request.benchmark, unit.request.benchmark_arguments])

    longest: dict[str, float] = {}
    for unit in units:
        longest[benchmark(unit)] = max(longest.get(benchmark(unit), 0.0), unit.cost)
    return sorted(units, key=lambda unit: (-longest[benchmark(unit)], benchmark(unit), -unit.cost))


def _first_task(request: Request) -> dict[str, object]:
    names = (
        "benchmark", "model", "hidden", "init", "biases", "epochs", "batch_size", "lr", "optimizer", "momentum",
        "keep_optimizer", "seed", "curve_every", "data_sha256",
    )  # fmt: skip
    return {"first": rules_of(request.benchmark).first(request), **{name: getattr(request, name) for name in names}}
