"""The models that a request can name, as stacks that fit a benchmark."""

import math
from collections.abc import Sequence

from torch import nn

from ogd.checks import ArgumentError, check_name
from ogd.lab import catalogue
from ogd.lab.benchmarks import Benchmark
from ogd.lab.models.mlp import StackedMLP
from ogd.lab.models.modules import StackedModules
from ogd.lab.models.stack import Stack
from ogd.lab.records import Request


def build(
    model: str,
    benchmark: Benchmark,
    *,
    hidden: Sequence[int],
    runs: int | Sequence[int] = 1,
    seed: int = 0,
    init: str = "pytorch",
    biases: bool = True,
) -> Stack:
    """Return a stack of the named model for a benchmark's inputs, outputs and heads.

    Examples:
        >>> from ogd.lab.benchmarks import rotated
        >>> build("cnn", rotated(tasks=2), hidden=[100], runs=2).module(1)[0]
        Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
    """
    check_name("model", model, catalogue.MODELS)
    heads = [task.classes for task in benchmark.tasks if task.classes is not None]
    if model == "cnn":

        def make() -> nn.Module:
            return cnn(benchmark.shape, benchmark.outputs, *hidden, biases=biases)

        return StackedModules.made(make, runs=runs, seed=seed, init=init, heads=heads)
    sizes = (math.prod(benchmark.shape), *hidden, benchmark.outputs)
    return StackedMLP(sizes, runs=runs, seed=seed, init=init, heads=heads, biases=biases)


def stack_of(request: Request, benchmark: Benchmark, runs: Sequence[int]) -> Stack:
    """Make the stack that a request names, for some of its runs."""
    said = {name: getattr(request, name) for name in ("hidden", "seed", "init", "biases")}
    return build(request.model, benchmark, runs=runs, **said)


def cnn(
    shape: tuple[int, ...] = (1, 28, 28), outputs: int = 10, hidden: int = 100, *, biases: bool = True
) -> nn.Sequential:
    """Return a network of LeNet's size.

    It has two convolutions of 5 × 5 (6 and 16 maps), each followed by ReLU and pooling, and
    two linear layers.

    Examples:
        >>> sum(w.numel() for w in cnn().parameters())
        82082
    """
    least = catalogue.LEAST_PIXELS["cnn"]
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ArgumentError(
            "model", f"a cnn takes images (channels, height, width) from {least} × {least} on, not {shape}"
        )
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2, bias=biases),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2, bias=biases),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), hidden, bias=biases),
        nn.ReLU(),
        nn.Linear(hidden, outputs, bias=biases),
    )
