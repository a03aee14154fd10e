"""The paper's network as a stack: R runs train as one model whose parameters have a leading axis R.

A Linear layer of the stack is one batched product, so Python's cost per step is paid once for all runs. The
backward pass is written by hand, because the gradient of a batch is wanted in factored form: for a layer with
inputs a (R, B, in) and gradients δ (R, B, out) at its outputs it is

    ∂L/∂W = δᵀ a,    ∂L/∂b = δᵀ 1,

and a step is one in-place product W ← W − η δᵀ a, which never forms the gradient.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ogd import catalogue, seeds
from ogd.checks import check_name
from ogd.models.initial import Heads, linear

PAPER = (784, 100, 100, 10)

Factors = list[tuple[Tensor, Tensor]]  # one (a, δ) a layer: the gradient of a batch


class StackedMLP(nn.Module):
    """R multi-layer perceptrons with ReLU, side by side; `init` says how their weights are drawn (`models.initial`).

    `runs` is how many, or which: run r is the same network whoever shares the stack. A run may stand in it several
    times, which is how a setting is swept with all else equal.

    Examples:
        >>> stack = StackedMLP(runs=3, seed=0)
        >>> stack(torch.rand(3, 10, 784)).shape
        torch.Size([3, 10, 10])
        >>> alone = StackedMLP(runs=[2], seed=0)
        >>> torch.equal(alone.weights[0][0], stack.weights[0][2])
        True
    """

    def __init__(
        self,
        sizes: Sequence[int] = PAPER,
        *,
        runs: int | Sequence[int] = 1,
        seed: int = 0,
        init: str = "pytorch",
        heads: Heads = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if isinstance(sizes, int) or not all(hasattr(size, "__index__") for size in sizes):
            raise ValueError(f"sizes: give whole numbers, from the inputs to the outputs, not {sizes!r}")
        self.sizes = tuple(sizes)
        self.runs = tuple(range(runs)) if isinstance(runs, int) else tuple(runs)
        if not all(hasattr(run, "__index__") for run in self.runs):
            raise ValueError(f"runs: give how many, or the numbers of some runs, not {runs!r}")
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(f"sizes: give at least an input and an output size, not {self.sizes}")
        if not self.runs or min(self.runs) < 0:
            raise ValueError(f"runs: give at least one run, each a number from 0, not {runs}")
        check_name("init", init, catalogue.INITS)
        drawn = [_drawn(self.sizes, init, heads, seeds.generator(seed, r, "weights")) for r in self.runs]
        layers = range(len(self.sizes) - 1)
        self.weights = nn.ParameterList(torch.stack([d[i][0] for d in drawn]).to(dtype) for i in layers)
        self.biases = nn.ParameterList(torch.stack([d[i][1] for d in drawn]).to(dtype) for i in layers)
        self._list_layers()

    def _list_layers(self) -> None:
        self.layers = list(zip(self.weights, self.biases, strict=True))  # a ParameterList is slow to walk

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights as any module does; with `assign=True` the parameters are new ones."""
        result = super().load_state_dict(*args, **kwargs)
        self._list_layers()
        return result

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (R, B, out) of inputs (R, B, in), or of (B, in) shown to every run."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (x.relu() if i else x) @ weight.mT + bias[:, None]
        return x

    @torch.no_grad()
    def activations(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return each layer's inputs and the logits, for `backward`."""
        inputs, last = [], len(self.layers) - 1
        for i, (weight, bias) in enumerate(self.layers):
            inputs.append(x)
            x = torch.bmm(x, weight.mT).add_(bias[:, None])  # on the CPU faster than baddbmm with a broadcast bias
            if i < last:
                x.relu_()
        return inputs, x

    @torch.no_grad()
    def backward(self, inputs: list[Tensor], delta: Tensor) -> Factors:
        """Return the gradient of a loss, given its gradient `delta` (R, B, out) with respect to the logits."""
        deltas = [delta]
        for i in range(len(self.layers) - 1, 0, -1):
            weight, a = self.layers[i][0], inputs[i]
            delta = torch.ops.aten.threshold_backward(torch.bmm(delta, weight), a, 0)
            deltas.append(delta)
        return list(zip(inputs, reversed(deltas), strict=True))

    @torch.no_grad()
    def descend(self, gradient: Factors, lr: float) -> None:
        """Take one step of gradient descent in place: w ← w − η g."""
        for (weight, bias), (a, delta) in zip(self.layers, gradient, strict=True):
            weight.baddbmm_(delta.mT, a, alpha=-lr)
            bias.sub_(delta.sum(1), alpha=lr)

    def module(self, run: int) -> nn.Sequential:
        """Return one run as an ordinary module, a copy."""
        if run not in self.runs:
            raise ValueError(f"run: {run} is not in this stack of runs {self.runs}")
        r = self.runs.index(run)
        with torch.device("meta"):  # draws nothing from the user's generator
            plain = mlp(self.sizes)
        plain = plain.to(self.weights[0].dtype).to_empty(device=self.weights[0].device)
        layers = [layer for layer in plain if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, (weight, bias) in zip(layers, self.layers, strict=True):
                layer.weight.copy_(weight[r])
                layer.bias.copy_(bias[r])
        return plain

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Sequential]) -> "StackedMLP":
        """Stack ordinary modules, each Linear, ReLU, …, Linear of the same sizes, as runs 0, 1, 2, …"""
        sizes = {_sizes(module) for module in modules}
        if len(sizes) != 1:
            raise ValueError(f"modules: give networks of one shape, not {sorted(sizes)}")
        linear = [[layer for layer in module if isinstance(layer, nn.Linear)] for module in modules]
        stack = cls(sizes.pop(), runs=len(modules), dtype=linear[0][0].weight.dtype)
        with torch.no_grad():
            for i, (weight, bias) in enumerate(stack.layers):
                weight.copy_(torch.stack([layers[i].weight for layers in linear]))
                bias.copy_(torch.stack([layers[i].bias for layers in linear]))
        return stack


def mlp(sizes: Sequence[int] = PAPER) -> nn.Sequential:
    """Return the same network for one run as an ordinary module, weights drawn from torch's global generator.

    Examples:
        >>> mlp((4, 3, 2))
        Sequential(
          (0): Linear(in_features=4, out_features=3, bias=True)
          (1): ReLU()
          (2): Linear(in_features=3, out_features=2, bias=True)
        )
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _drawn(sizes: Sequence[int], init: str, heads: Heads, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Draw the weight and bias of every layer; only the last one has heads."""
    layers = list(pairwise(sizes))
    return [linear(init, *layer, generator, heads if layer is layers[-1] else ()) for layer in layers]


def _sizes(module: nn.Sequential) -> tuple[int, ...]:
    linear, between = list(module)[::2], list(module)[1::2]
    alternate = len(linear) == len(between) + 1 and all(isinstance(layer, nn.ReLU) for layer in between)
    if not alternate or not all(isinstance(layer, nn.Linear) and layer.bias is not None for layer in linear):
        raise ValueError("modules: each must be an nn.Sequential of Linear, ReLU, …, Linear, with biases")
    layers = [layer for layer in linear if isinstance(layer, nn.Linear)]
    return (layers[0].in_features, *(layer.out_features for layer in layers))
