"""Orthogonal Gradient Descent: PyTorch models that learn new tasks without forgetting the old ones.

`ogd.Memory` protects any model trained by any optimizer. The laboratory, in the order data flows through it:

- `ogd.data`: files → arrays; MNIST travels with the package
- `ogd.benchmarks`: arrays → a sequence of tasks
- `ogd.models`: networks as stacks of runs: the paper's, a convolutional one, any module
- `ogd.optimizers`: how a stack moves: SGD and Adam
- `ogd.methods`: how each method differs from SGD
- `ogd.training`: the one loop, and the accuracy matrix it yields
- `ogd.records`: what was asked, what came out, and the metrics derived from it
- `ogd.experiments`: every table and figure of the paper as data, and what runs them
- `ogd.reporting`: records → tables, figures and the page
- `ogd.plot`: runs → matplotlib axes, for notebooks

`ogd.forgetting` and `ogd.compare` measure what any model has forgotten. `ogd.integrations` has a callback or plugin per
framework; import the one you need (`from ogd.integrations.lightning import OGD`).
`ogd.load_plugin` loads a file that registers methods, benchmarks and experiments of your own.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ogd import laboratory
from ogd.version import __version__

if TYPE_CHECKING:
    from ogd.measuring import compare, forgetting
    from ogd.memory import Memory
    from ogd.plugins import load_plugin

__all__ = [
    "Memory",
    "__version__",
    "benchmarks",
    "compare",
    "data",
    "experiments",
    "forgetting",
    "load_plugin",
    "memory",
    "methods",
    "models",
    "optimizers",
    "plot",
    "records",
    "reporting",
    "training",
]


def __getattr__(name: str) -> Any:
    # imported on first use, so that `ogd --help` need not wait for torch
    if name == "Memory":
        return importlib.import_module("ogd.memory").Memory
    if name in ("compare", "forgetting"):
        return getattr(importlib.import_module("ogd.measuring"), name)
    if name == "load_plugin":
        return importlib.import_module("ogd.plugins").load_plugin
    if name in __all__:
        try:
            return importlib.import_module(f"ogd.{name}")
        except ModuleNotFoundError as error:
            if error.name in laboratory.PACKAGES:
                raise ModuleNotFoundError(f"ogd.{name}: {laboratory.missing()}", name=error.name) from error
            raise
    raise AttributeError(f"module 'ogd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
