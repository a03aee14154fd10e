"""Orthogonal Gradient Descent: PyTorch models that learn new tasks without forgetting the old ones.

- `ogd.ExampleMemory` keeps a few examples with the model's outputs, and protects them by rehearsal.
- `ogd.GradientMemory` keeps gradients of outputs, and protects them by projection: the paper's method.
- `ogd.load` reads either memory from its file; `ogd.Memory` is their base class.
- `ogd.forgetting` and `ogd.compare` measure what any model has forgotten.
- `ogd.integrations` has a callback or plugin per framework; import the one you need
  (`from ogd.integrations.lightning import OGD`).
- `ogd.lab` is the laboratory: the paper's tables and figures, public leaderboards, comparisons of your own, and the
  command `ogd`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ogd.version import __version__

if TYPE_CHECKING:
    from ogd.measuring import compare, forgetting
    from ogd.memory import ExampleMemory, GradientMemory, Memory, load

__all__ = [
    "ExampleMemory",
    "GradientMemory",
    "Memory",
    "__version__",
    "compare",
    "forgetting",
    "lab",
    "load",
    "memory",
]

_HOMES = {
    **dict.fromkeys(("ExampleMemory", "GradientMemory", "Memory", "load"), "ogd.memory"),
    **dict.fromkeys(("compare", "forgetting"), "ogd.measuring"),
}


def __getattr__(name: str) -> Any:
    # imported on first use, so that `ogd --help` does not wait for torch
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"ogd.{name}")
    raise AttributeError(f"module 'ogd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
