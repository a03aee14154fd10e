"""Arrays → a sequence of tasks."""

import importlib
from typing import TYPE_CHECKING, Any

from ogd.lab.catalogue import Option
from ogd.lab.catalogue import register_benchmark as register

if TYPE_CHECKING:
    from ogd.lab.benchmarks.datasets import from_datasets
    from ogd.lab.benchmarks.permuting import permuted
    from ogd.lab.benchmarks.rotating import rotate, rotated
    from ogd.lab.benchmarks.rules import Rules, task_names
    from ogd.lab.benchmarks.splitting import split
    from ogd.lab.benchmarks.task import Benchmark, Examples, Task

__all__ = [
    "Benchmark",
    "Examples",
    "Option",
    "Rules",
    "Task",
    "from_datasets",
    "permuted",
    "register",
    "rotate",
    "rotated",
    "split",
    "task_names",
]

PLACES = {
    "datasets": ["from_datasets"],
    "permuting": ["permuted"],
    "rotating": ["rotate", "rotated"],
    "rules": ["Rules", "task_names"],
    "splitting": ["split"],
    "task": ["Benchmark", "Examples", "Task"],
}


def __getattr__(name: str) -> Any:
    # imported on first use, so that the rules of angles and partitions are there without torch
    for module, names in PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"ogd.lab.benchmarks.{module}"), name)
    raise AttributeError(f"module 'ogd.lab.benchmarks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
