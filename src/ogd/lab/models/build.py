"""The models that a request can name, as stacks that fit a benchmark."""

import math
from collections.abc import Sequence

from torch import nn

from ogd.checks import check_name
from ogd.lab import catalogue
from ogd.lab.benchmarks import Benchmark
from ogd.lab.models.cnn import cnn
from ogd.lab.models.mlp import StackedMLP
from ogd.lab.models.modules import StackedModules
from ogd.lab.models.stack import Stack


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
