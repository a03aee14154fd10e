"""What a benchmark's settings may be, and what follows from them before any task is made. Never imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ogd.checks import check_whole
from ogd.lab import catalogue
from ogd.lab.data import Dataset
from ogd.lab.records import Request

TASKS = 5  # unless a user says how many


class Rules:
    """The rules of a benchmark whose settings do not depend on one another; a subclass says what is different.

    They must hold without making the benchmark: a mistake is told, and the work is planned, before any work begins.
    """

    def __init__(self, settings: Sequence[catalogue.Option[Any]] = ()) -> None:
        self.settings = settings

    def resolve(self, tasks: int | None, dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return `tasks` and all settings for what a user gave, or raise a ValueError that names the argument."""
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


def check_left_out(left_out: Any, dataset: Dataset) -> None:
    """Raise a ValueError unless so many training images can be left out."""
    check_whole(0, left_out=left_out)
    n = len(dataset.train_labels)
    if left_out >= n:
        raise ValueError(f"left_out: {left_out:,} leaves none of the {n:,} training images")


def rules_of(benchmark: str) -> Rules:
    """Return the rules of a benchmark in the catalogue."""
    entry = catalogue.BENCHMARKS[benchmark]
    rules: Rules = catalogue.load(entry.rules)(entry.settings)
    return rules


def task_names(request: Request) -> tuple[str, ...]:
    """Return the name of each task of a request, as tables show it."""
    return rules_of(request.benchmark).names(request)
