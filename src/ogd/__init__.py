"""Orthogonal Gradient Descent: PyTorch models that learn new tasks without forgetting the old ones.

- `ogd.Memory` protects any model trained by any optimizer.
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
    from ogd.memory import Memory

__all__ = ["Memory", "__version__", "compare", "forgetting", "lab", "memory"]


def __getattr__(name: str) -> Any:
    # imported on first use, so that `ogd --help` need not wait for torch
    if name == "Memory":
        return importlib.import_module("ogd.memory").Memory
    if name in ("compare", "forgetting"):
        return getattr(importlib.import_module("ogd.measuring"), name)
    if name in __all__:
        return importlib.import_module(f"ogd.{name}")
    raise AttributeError(f"module 'ogd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
