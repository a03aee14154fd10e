"""The laboratory: experiments in continual learning, in the order data flows through it.

- `ogd.lab.data`: files → arrays; MNIST travels with the package
- `ogd.lab.benchmarks`: arrays → a sequence of tasks
- `ogd.lab.models`: networks as stacks of runs: the paper's, a convolutional one, any module
- `ogd.lab.optimizers`: how a stack moves: SGD and Adam
- `ogd.lab.methods`: how each method differs from SGD
- `ogd.lab.training`: the one loop, and the accuracy matrix it yields
- `ogd.lab.records`: what was asked, what came out, and the metrics derived from it
- `ogd.lab.experiments`: every table and figure of the paper as data, and what runs them
- `ogd.lab.reporting`: records → tables, figures and the page
- `ogd.lab.plot`: runs → matplotlib axes, for notebooks

`ogd.lab.load_plugin` loads a file that registers methods, benchmarks and experiments of your own.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ogd.lab.plugins import load_plugin

PACKAGES = ("jinja2", "matplotlib", "rich")  # of the extra `ogd[lab]`

__all__ = [
    "benchmarks",
    "data",
    "experiments",
    "load_plugin",
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
    if name == "load_plugin":
        return importlib.import_module("ogd.lab.plugins").load_plugin
    if name in __all__:
        try:
            return importlib.import_module(f"ogd.lab.{name}")
        except ModuleNotFoundError as error:
            if error.name in PACKAGES:
                raise ModuleNotFoundError(f"ogd.lab.{name}: {missing_packages()}", name=error.name) from error
            raise
    raise AttributeError(f"module 'ogd.lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def missing_packages() -> str:
    """Name the packages of the laboratory that are not installed and how to install them; return "" if all are."""
    absent = [name for name in PACKAGES if find_spec(name) is None]
    if not absent:
        return ""
    return f"the laboratory needs {' and '.join(absent)}, not installed here: pip install 'ogd[lab]'"
