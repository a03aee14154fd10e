"""How Split deals the classes out over its tasks. Never imports torch.

A partition is written as `01/23/45/67/89`, as `0,1/10,11` where a class has two digits, or as `random:3`.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ogd.checks import ArgumentError, check_name, check_whole
from ogd.lab.benchmarks.rules import TASKS, Rules
from ogd.lab.catalogue.benchmarks import HEADS
from ogd.lab.data import Dataset
from ogd.lab.records import Request
from ogd.lab.records.request import Partition


def resolve_partition(
    tasks: int | None, given: str | Partition | None, heads: str, classes: Sequence[int]
) -> Partition:
    """Return the classes of each task: divided in order and evenly unless given."""
    check_whole(1, optional=("tasks",), tasks=tasks)
    check_name("heads", heads, HEADS)
    if given is None:
        dealt = even(classes, tasks or TASKS)
        if heads == "multi" and min(len(part) for part in dealt) < 2:
            raise ArgumentError(
                "tasks", f"{len(classes)} classes over {tasks or TASKS} tasks leave a head with a single class"
            )
    elif isinstance(given, str):
        dealt = parse(given, classes, tasks or TASKS)
    else:
        dealt = given
    if tasks is not None and tasks != len(dealt):
        raise ArgumentError(
            "partition", f"{name(dealt)} makes {len(dealt)} tasks, not {tasks}; leave out one of the two"
        )
    check(dealt, classes, heads)
    return dealt


class SplitRules(Rules):
    """Every class belongs to exactly one task."""

    def resolve(self, tasks: int | None, dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
        (heads,) = (option.value(given.get("heads")) for option in self.settings if option.name == "heads")
        dealt = resolve_partition(tasks, given.get("partition"), heads, dataset.classes)
        further = {name: value for name, value in given.items() if name != "partition"}
        return super().resolve(None, dataset, further) | {"tasks": len(dealt), "partition": dealt, "heads": heads}

    def names(self, request: Request) -> tuple[str, ...]:
        return tuple(name([part]) for part in request.partition or ())

    def sizes(self, request: Request, dataset: Dataset) -> tuple[int, ...]:
        counts = np.bincount(dataset.train_labels[request.settings.get("left_out", 0) :])
        return tuple(int(counts[list(part)].sum()) for part in request.partition or ())


def parse(text: str, classes: Sequence[int], tasks: int) -> Partition:
    """Read a partition of `classes`; `random:SEED` deals them out over `tasks` tasks by a named seed.

    Examples:
        >>> parse("01/23/45", range(6), 3)
        ((0, 1), (2, 3), (4, 5))
    """
    if text.startswith("random:"):
        return _dealt(text, classes, tasks)
    parts = [part.split(",") if "," in text else list(part) for part in text.split("/")]
    try:
        return tuple(tuple(int(label) for label in part) for part in parts)
    except ValueError:
        raise ArgumentError(
            "partition", f"cannot read {text!r}; write classes as 01/23/45, as 0,1/10,11 or as random:SEED"
        ) from None


def even(classes: Sequence[int], tasks: int) -> Partition:
    """Deal the classes out in order, as evenly as can be.

    Examples:
        >>> even(range(10), 2)
        ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    """
    if tasks > len(classes):
        raise ArgumentError("tasks", f"{len(classes)} classes cannot be divided among {tasks} tasks")
    bounds = [len(classes) * t // tasks for t in range(tasks + 1)]
    return tuple(tuple(classes[a:b]) for a, b in pairwise(bounds))


def check(partition: Partition, classes: Sequence[int], heads: str) -> None:
    """Raise a ValueError unless every class stands in exactly one task, and each head has a choice to make."""
    dealt = [label for part in partition for label in part]
    repeated = sorted({label for label in dealt if dealt.count(label) > 1})
    missing, unknown = sorted(set(classes) - set(dealt)), sorted(set(dealt) - set(classes))
    for labels, what in [(repeated, "repeats"), (missing, "misses"), (unknown, "has unknown")]:
        if labels:
            noun = "class" if len(labels) == 1 else "classes"
            raise ArgumentError("partition", f"{name(partition)} {what} {noun} {', '.join(map(str, labels))}")
    fewest = 2 if heads == "multi" else 1
    small = [part for part in partition if len(part) < fewest]
    if small:
        raise ArgumentError(
            "partition", f"each task needs at least {fewest} classes, {name(small)} has {len(small[0])}"
        )


def name(partition: Sequence[Sequence[int]]) -> str:
    """Write a partition as `parse` reads it.

    Examples:
        >>> name([(0, 1), (2, 10)]), name([(0, 1), (2, 3)])
        ('0,1/2,10', '01/23')
    """
    comma = "," if any(label > 9 for part in partition for label in part) else ""
    return "/".join(comma.join(map(str, part)) for part in partition)


def _dealt(text: str, classes: Sequence[int], tasks: int) -> Partition:
    seed = text.removeprefix("random:")
    if not seed.isdecimal():
        raise ArgumentError("partition", f"{text!r} needs a whole number for its seed, as in random:3")
    shuffled = list(classes)
    random.Random(int(seed)).shuffle(shuffled)
    return tuple(tuple(sorted(part)) for part in even(shuffled, tasks))
