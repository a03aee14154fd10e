"""What there is to choose from, by name. Nothing here imports torch: `ogd list` answers at once."""

from typing import Any

from ogd.catalogue.entry import Benchmark, Entry, Look, Method, Option
from ogd.catalogue.methods import METHODS

__all__ = [
    "BENCHMARKS",
    "DATASETS",
    "INITS",
    "METHODS",
    "Benchmark",
    "Entry",
    "Look",
    "Method",
    "Option",
    "check_options",
]

BENCHMARKS = {
    "permuted": Benchmark(
        "Permuted", "a fixed random order of the pixels per task", "ogd.benchmarks.permuted:permuted"
    ),
    "rotated": Benchmark(
        "Rotated", "the images turned by a fixed angle per task", "ogd.benchmarks.rotated:rotated", ("angles",)
    ),
    "split": Benchmark(
        "Split",
        "the classes dealt out over the tasks, one head per task",
        "ogd.benchmarks.split:split",
        ("partition", "heads"),
    ),
}

MODELS = {
    "mlp": "the paper's perceptron: hidden layers of 100 units, ReLU",
    "cnn": "LeNet-sized: two convolutions, two linear layers, ReLU; images of 8 × 8 pixels or more",
}

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
