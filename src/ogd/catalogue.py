"""What there is to choose from, by name. Nothing here imports torch: `ogd list` answers at once."""

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A name's one-line summary and where its object lives."""

    summary: str
    target: str  # "module:attribute", imported on first use

    def load(self) -> Any:
        module, attribute = self.target.split(":")
        return getattr(importlib.import_module(module), attribute)


BENCHMARKS = {
    "permuted": Entry("a fixed random order of the pixels a task", "ogd.benchmarks.permuted:permuted"),
    "rotated": Entry("the images turned by a fixed angle a task", "ogd.benchmarks.rotated:rotated"),
    "split": Entry("the classes dealt out over the tasks, one head a task", "ogd.benchmarks.split:split"),
}

METHODS = {
    "sgd": Entry("one task after the other, nothing done against forgetting", "ogd.methods.sgd:SGD"),
    "mtl": Entry("every batch from all tasks seen so far; an upper bound, not a rival", "ogd.methods.mtl:MTL"),
}

DATASETS = {
    "mnist": "60,000 + 10,000 handwritten digits, 28 × 28, 10 classes; inside the package",
    "DIR": "any folder of IDX files, gzipped or not: --data DIR, or the environment variable OGD_DATA",
}


def check_name(argument: str, name: str, names: Iterable[str]) -> None:
    """Raise a ValueError that names the nearest right name unless `name` is one of `names`."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(names)}"
    raise ValueError(f"{argument}: there is no {name!r}; {hint}")
