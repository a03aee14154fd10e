"""What a benchmark's settings may be, and what follows from them before any task is made. Never imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ogd.checks import ArgumentError, check_whole, is_number
from ogd.lab import catalogue
from ogd.lab.data import Dataset
from ogd.lab.records import Request

TASKS = 5  # unless a user says how many
STEP = 10.0  # degrees between two tasks of Rotated, as in the paper


class Rules:
    """The rules of a benchmark whose settings do not depend on one another; a subclass says what is different.

    They must hold without making the benchmark: a mistake is told, and the work is planned, before any work begins.
    """

    def __init__(self, settings: Sequence[catalogue.Option[Any]] = ()) -> None:
        self.settings = settings

    def resolve(self, tasks: int | None, dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return `tasks` and all settings for what a user gave, or raise an `ogd.checks.ArgumentError`."""
        check_whole(1, optional=("tasks",), tasks=tasks)
        check_left_out(given.get("left_out", 0), dataset)
        return {
            "tasks": tasks or TASKS,
            **{option.name: option.value(given.get(option.name)) for option in self.settings},
        }

    def names(self, request: Request) -> tuple[str, ...]:
        """Return the name of each task."""
        return tuple(f"task {number}" for number in range(1, request.tasks + 1))

    def sizes(self, request: Request, dataset: Dataset) -> tuple[int, ...]:
        """Return how many training examples each task has."""
        return (len(dataset.train_labels) - request.settings.get("left_out", 0),) * request.tasks

    def first(self, request: Request) -> dict[str, Any]:
        """Return what the first task depends on: requests that agree in this can share its training."""
        return request.benchmark_arguments


class PermutedRules(Rules):
    """Each task's permutations are drawn by its own number."""

    def first(self, request: Request) -> dict[str, Any]:
        return request.settings


class RotatedRules(Rules):
    """There is one angle per task."""

    def resolve(self, tasks: int | None, dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
        angles = resolve_angles(tasks, given.get("angles"))
        further = {name: value for name, value in given.items() if name != "angles"}  # which may be below 0
        return super().resolve(None, dataset, further) | {"tasks": len(angles), "angles": angles}

    def names(self, request: Request) -> tuple[str, ...]:
        return tuple(map(angle_name, request.angles or ()))

    def first(self, request: Request) -> dict[str, Any]:
        return {"angle": (request.angles or (None,))[0], **request.settings}


def resolve_angles(tasks: int | None, angles: Sequence[float] | None) -> tuple[float, ...]:
    """Return the angle of each task: 0, 10, 20, … unless given.

    Examples:
        >>> resolve_angles(3, None), resolve_angles(None, [0, 45])
        ((0.0, 10.0, 20.0), (0.0, 45.0))
    """
    check_whole(1, optional=("tasks",), tasks=tasks)
    if angles is None:
        return tuple(STEP * t for t in range(tasks or TASKS))
    if len(angles) == 0 or not all(map(is_number, angles)):
        raise ArgumentError("angles", f"give at least one finite number of degrees, not {list(angles)}")
    if tasks is not None and tasks != len(angles):
        raise ArgumentError("angles", f"{len(angles)} angles do not make {tasks} tasks; leave out one of the two")
    return tuple(float(angle) for angle in angles)


def angle_name(angle: float) -> str:
    """Write an angle as tables show it.

    Examples:
        >>> angle_name(45.0), angle_name(-22.5)
        ('45°', '-22.5°')
    """
    return f"{angle:g}°"


def check_left_out(left_out: Any, dataset: Dataset) -> None:
    """Raise a ValueError unless so many training images can be left out."""
    check_whole(0, left_out=left_out)
    n = len(dataset.train_labels)
    if left_out >= n:
        raise ArgumentError("left_out", f"{left_out:,} leaves none of the {n:,} training images")


def rules_of(benchmark: str) -> Rules:
    """Return the rules of a benchmark in the catalogue."""
    entry = catalogue.BENCHMARKS[benchmark]
    rules: Rules = catalogue.load(entry.rules)(entry.settings)
    return rules


def task_names(request: Request) -> tuple[str, ...]:
    """Return the name of each task of a request, as tables show it."""
    return rules_of(request.benchmark).names(request)
