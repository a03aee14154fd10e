"""What there is to choose from, by name. Nothing here imports torch: `ogd list` answers at once."""

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """Something a method can be told: an argument of its class, and an option of the command line."""

    name: str
    default: int | float | str | None
    help: str
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> type:
        return float if self.default is None else type(self.default)

    def check(self, value: Any) -> None:
        """Raise a ValueError that names the option unless it can take this value."""
        if self.choices:
            check_name(self.name, value, self.choices)
        elif self.kind is int:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{self.name}: must be a whole number of at least 1, not {value!r}")
        elif not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{self.name}: must be a number of at least 0, not {value!r}")


@dataclass(frozen=True)
class Entry:
    """A name's one-line summary, where its object lives, and what it can be told."""

    summary: str
    target: str  # "module:attribute", imported on first use
    options: tuple[Option, ...] = ()

    def load(self) -> Any:
        module, attribute = self.target.split(":")
        return getattr(importlib.import_module(module), attribute)


BENCHMARKS = {
    "permuted": Entry("a fixed random order of the pixels a task", "ogd.benchmarks.permuted:permuted"),
    "rotated": Entry("the images turned by a fixed angle a task", "ogd.benchmarks.rotated:rotated"),
    "split": Entry("the classes dealt out over the tasks, one head a task", "ogd.benchmarks.split:split"),
}

STORAGE = Option("storage", 200, "gradients (ogd) or examples (agem) kept of each finished task")

METHODS = {
    "ogd": Entry(
        "updates orthogonal to the gradients of stored outputs",
        "ogd.methods.ogd:OGD",
        (
            STORAGE,
            Option("logits", "true", "whose gradients are stored: GTL, AVE or ALL", ("true", "mean", "all")),
            Option("projection", "implicit", "how it is computed", ("implicit", "explicit")),
            Option("every", 1, "steps between two projections; above 1 only explicit"),
        ),
    ),
    "agem": Entry(
        "the loss on a batch of stored examples must not grow",
        "ogd.methods.agem:AGEM",
        (STORAGE, Option("reference_batch", 10, "stored examples drawn a step")),
    ),
    "ewc": Entry(
        "weights that mattered are pulled back",
        "ogd.methods.ewc:EWC",
        (
            Option(
                "ewc_lambda",
                None,
                "weight of the penalty; by default what we tuned for the benchmark at the paper's scale",
            ),
            Option("fisher_examples", 2000, "examples the Fisher information is taken from"),
            Option("fisher_labels", "true", "their own labels, or labels drawn by the model", ("true", "sampled")),
        ),
    ),
    "sgd": Entry("one task after the other, nothing done against forgetting", "ogd.methods.sgd:SGD"),
    "mtl": Entry("every batch from all tasks seen so far; an upper bound, not a rival", "ogd.methods.mtl:MTL"),
}

EWC_LAMBDA = {"permuted": 30.0, "rotated": 100.0, "split": 300.0}  # chosen by `ogd tune ewc`: results/tuning

INITS = {
    "pytorch": "PyTorch's default: weights and biases uniform within ±1/√inputs",
    "glorot": "weights uniform within ±√(6/(inputs + outputs)), each head with its own outputs; zero biases",
    "he": "weights uniform within ±√(6/inputs); zero biases",
}

DATASETS = {
    "mnist": "60,000 + 10,000 handwritten digits, 28 × 28, 10 classes; inside the package",
    "DIR": "any folder of IDX files, gzipped or not: --data DIR, or the environment variable OGD_DATA",
}


def check_options(method: str, **given: Any) -> None:
    """Raise a ValueError that names the option of a method which cannot take its value."""
    for option in METHODS[method].options:
        if option.name in given:
            option.check(given[option.name])


def check_name(argument: str, name: str, names: Iterable[str]) -> None:
    """Raise a ValueError that names the nearest right name unless `name` is one of `names`."""
    names = list(names)
    if not isinstance(name, str):
        raise ValueError(f"{argument}: must be one of {', '.join(names)}, not {name!r}")
    if name in names:
        return
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(names)}"
    raise ValueError(f"{argument}: there is no {name!r}; {hint}")
