"""What there is to choose from, by name. Nothing here imports torch: `ogd list` answers at once."""

from ogd.lab.catalogue.benchmarks import BENCHMARKS
from ogd.lab.catalogue.entry import Benchmark, Entry, Method, Option, load
from ogd.lab.catalogue.looks import Look
from ogd.lab.catalogue.methods import METHODS
from ogd.lab.catalogue.register import register_benchmark, register_method

__all__ = [
    "BENCHMARKS",
    "DATASETS",
    "DEFAULT_INIT",
    "DEFAULT_MODEL",
    "INITS",
    "LEAST_PIXELS",
    "METHODS",
    "MODELS",
    "Benchmark",
    "Entry",
    "Look",
    "Method",
    "Option",
    "load",
    "register_benchmark",
    "register_method",
]

MODELS = {
    "mlp": "the paper's perceptron: hidden layers of 100 units, ReLU",
    "cnn": "LeNet-sized: two convolutions, two linear layers, ReLU; images of 8 × 8 pixels or more",
}
LEAST_PIXELS = {"mlp": 1, "cnn": 8}  # an image's height and width at least: two poolings leave a quarter
DEFAULT_MODEL = "mlp"

INITS = {
    "pytorch": "PyTorch's default: weights and biases uniform within ±1/√inputs",
    "glorot": "weights uniform within ±√(6/(inputs + outputs)), each head with its own outputs; zero biases",
    "he": "weights uniform within ±√(6/inputs); zero biases",
}
DEFAULT_INIT = "pytorch"

DATASETS = {
    "mnist": "60,000 + 10,000 handwritten digits, 28 × 28, 10 classes; inside the package",
    "DIR": "any folder of IDX files, gzipped or not: --data DIR, or the environment variable OGD_DATA",
}
