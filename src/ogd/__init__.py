"""Orthogonal Gradient Descent: PyTorch models that learn new tasks without forgetting the old ones.

The laboratory, in the order data flows through it:

- `ogd.data`: files → arrays; MNIST travels with the package
- `ogd.benchmarks`: arrays → a sequence of tasks
- `ogd.models`: the paper's network, many runs in lockstep
- `ogd.methods`: how each method differs from SGD
- `ogd.training`: the one loop, and the accuracy matrix it yields
- `ogd.records`: what was asked, what came out, and the metrics derived from it
- `ogd.experiments`: every table and figure of the paper as data, and what runs them
- `ogd.reporting`: records → tables
"""

import importlib
from types import ModuleType

from ogd.version import __version__

__all__ = [
    "__version__",
    "benchmarks",
    "data",
    "experiments",
    "methods",
    "models",
    "records",
    "reporting",
    "training",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:  # imported on first use, so that `ogd --help` need not wait for torch
        return importlib.import_module(f"ogd.{name}")
    raise AttributeError(f"module 'ogd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
