"""The angles of Rotated's tasks. Never imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ogd.checks import check_whole, is_number
from ogd.lab.benchmarks.rules import TASKS, Rules
from ogd.lab.data import Dataset
from ogd.lab.records import Request

STEP = 10.0  # degrees between two tasks, as in the paper


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
        raise ValueError(f"angles: give at least one finite number of degrees, not {list(angles)}")
    if tasks is not None and tasks != len(angles):
        raise ValueError(f"angles: {len(angles)} angles do not make {tasks} tasks; leave out one of the two")
    return tuple(float(angle) for angle in angles)


def name(angle: float) -> str:
    """Write an angle as tables show it.

    Examples:
        >>> name(45.0), name(-22.5)
        ('45°', '-22.5°')
    """
    return f"{angle:g}°"


class RotatedRules(Rules):
    """There is one angle per task."""

    def resolve(self, tasks: int | None, dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
        angles = resolve_angles(tasks, given.get("angles"))
        further = {name: value for name, value in given.items() if name != "angles"}  # which may be below 0
        return super().resolve(None, dataset, further) | {"tasks": len(angles), "angles": angles}

    def names(self, request: Request) -> tuple[str, ...]:
        return tuple(map(name, request.angles or ()))

    def first(self, request: Request) -> dict[str, Any]:
        return {"angle": (request.angles or (None,))[0], **request.settings}
