"""The paper's network as a stack: R perceptrons train as one model whose parameters have a leading axis R.

A linear layer of the stack is one batched product, so Python's cost per step is paid once for all runs. The backward
pass is written by hand, because the gradient of a batch is wanted as its factors (`models.gradient`).
"""

from collections.abc import Callable, Sequence
from itertools import chain, pairwise, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from ogd import seeds
from ogd.checks import ArgumentError, check_name, is_whole
from ogd.lab import catalogue
from ogd.lab.benchmarks.batches import Batch
from ogd.lab.models.gradient import FactoredGradient
from ogd.lab.models.initial import Heads, linear
from ogd.lab.models.stack import Stack, run_numbers
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.pieces import Piece

PAPER = (784, 100, 100, 10)

Layers = Sequence[tuple[Tensor, Tensor | None]]  # weight (R, out, in) and bias (R, out) of each
Shift = Callable[[int, Tensor, Tensor], None]  # (layer, its input, its output): changes the output in place
Unshift = Callable[[int, Tensor, Tensor | None], None]  # (layer, δ at its output, δ at its input): changes the latter


class StackedMLP(nn.Module, Stack):
    """R multi-layer perceptrons with ReLU, side by side; inputs of any shape are flattened.

    `runs` is how many, or which: run r is the same network whoever shares the stack. A run may stand in it several
    times, which is how a setting is swept with all else equal. `init` says how weights are drawn
    (`ogd.lab.models.initial`), and `heads` which outputs belong together, where they do. Without `biases` the layers
    have weights alone.

    Examples:
        >>> stack = StackedMLP(runs=3, seed=0)
        >>> stack(torch.rand(3, 10, 784)).shape
        torch.Size([3, 10, 10])
        >>> alone = StackedMLP(runs=[2], seed=0)
        >>> torch.equal(alone.params["0.weight"][0], stack.params["0.weight"][2])
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
        biases: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if isinstance(sizes, int) or len(sizes) < 2 or not all(is_whole(size, 1) for size in sizes):
            raise ArgumentError(
                "sizes", f"give whole numbers from 1, those of inputs and outputs at least, not {sizes!r}"
            )
        self.sizes, self.runs = tuple(sizes), run_numbers(runs)
        check_name("init", init, catalogue.INITS)
        drawn = [_draw_layers(self.sizes, init, heads, seeds.generator(seed, r, "weights")) for r in self.runs]
        layers = range(len(self.sizes) - 1)
        self.outputs = self.sizes[-1]
        self.weights = nn.ParameterList(torch.stack([d[i][0] for d in drawn]).to(dtype) for i in layers)
        self.biases = nn.ParameterList(torch.stack([d[i][1] for d in drawn]).to(dtype) for i in layers if biases)
        self._list_layers()

    def _list_layers(self) -> None:
        # a ParameterList is slow to walk
        self.layers: Layers = list(zip_longest(self.weights, self.biases))
        self.names: list[tuple[str, ...]] = [  # as in `module(run)`
            (f"{2 * i}.weight", f"{2 * i}.bias")[: 1 + bool(self.biases)] for i in range(len(self.layers))
        ]
        named = [zip(names, layer, strict=False) for names, layer in zip(self.names, self.layers, strict=True)]
        self.params = {name: w for name, w in chain.from_iterable(named) if w is not None}

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights as any module does; with `assign=True` the parameters are new ones."""
        result = super().load_state_dict(*args, **kwargs)
        self._list_layers()
        return result

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (R, B, out) of inputs (R, B, …), or of (B, in) shown to every run."""
        x = x.expand(len(self.runs), *x.shape) if x.ndim == 2 else x.flatten(2)
        return _through(self.layers, x)[1]

    @torch.no_grad()
    def passing(self, x: Tensor, shift: Shift | None = None) -> tuple[list[Tensor], Tensor]:
        """Return each layer's inputs and the logits; `shift` may add to what a layer computes."""
        return _through(self.layers, x.flatten(2).to(self.layers[0][0].dtype), shift)

    @torch.no_grad()
    def backward(self, tape: list[Tensor], delta: Tensor, unshift: Unshift | None = None) -> FactoredGradient:
        """Return the gradient, given that of the logits; `unshift` is the backward pass of a `shift`."""
        deltas = [delta]
        for i in range(len(self.layers) - 1, -1, -1):
            before = torch.bmm(delta, self.layers[i][0]) if i else None
            if unshift is not None:
                unshift(i, delta, before)
            if before is not None:
                delta = torch.ops.aten.threshold_backward(before, tape[i], 0)
                deltas.append(delta)
        return FactoredGradient(list(zip(tape, reversed(deltas), strict=True)), bool(self.biases))

    @torch.no_grad()
    def squares(self, tape: list[Tensor], delta: Tensor) -> list[Tensor]:
        """(1/n) (δ²)ᵀ (a²) for a weight: one product of squares."""
        n, pairs = delta.shape[1], self.backward(tape, delta).pairs
        both = [(torch.bmm((d * d).mT, a * a).div_(n), (d * d).mean(1)) for a, d in pairs]
        return [square for layer in both for square in layer[: 1 + bool(self.biases)]]

    @torch.no_grad()
    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        first, bias = self.layers[0]
        if columns is not None:
            # x[:, π] Wᵀ = x (W[:, π⁻¹])ᵀ: permuting the weights once spares permuting every image for every run
            first = first.gather(2, columns.argsort(1)[:, None].expand_as(first))
        x = x.flatten(1).to(first.dtype).expand(len(self.runs), -1, -1)
        return _through([(first, bias), *self.layers[1:]], x)[1]

    def output_gradients(self, batch: Batch, outputs: str, classes: tuple[int, ...] | None) -> tuple[list[Piece], int]:
        head = list(classes or range(self.outputs))
        tape, z = self.passing(batch.x)
        if outputs == "true":
            delta = batch.target.to(z.dtype)
        elif outputs == "mean":
            delta = torch.zeros_like(z)
            delta[..., head] = 1 / len(head)
        else:
            tape = [a.repeat_interleave(len(head), 1) for a in tape]
            delta = torch.eye(self.outputs, dtype=z.dtype)[head].repeat(z.shape[1], 1)
            delta = delta.expand(len(z), -1, -1).contiguous()
        pairs = self.backward(tape, delta).pairs
        blocks = [Factored(a, d, bool(self.biases)) for a, d in pairs]
        return [Piece(*piece) for piece in zip(self.names, blocks, strict=True)], delta.shape[1]

    def module(self, run: int) -> nn.Sequential:
        """Return one run as an ordinary module, a copy."""
        r = self.index(run)
        with torch.device("meta"):  # draws nothing from the user's generator
            plain = mlp(self.sizes, biases=bool(self.biases))
        plain = plain.to(self.weights[0].dtype).to_empty(device=self.weights[0].device)
        layers = [layer for layer in plain if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, (weight, bias) in zip(layers, self.layers, strict=True):
                layer.weight.copy_(weight[r])
                if bias is not None:
                    layer.bias.copy_(bias[r])
        return plain

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Sequential]) -> "StackedMLP":
        """Stack ordinary modules, each Linear, ReLU, …, Linear of the same sizes, as runs 0, 1, 2, …"""
        sizes = {_sizes(module) for module in modules}
        if len(sizes) != 1:
            raise ArgumentError("modules", f"give networks of one shape, not {sorted(sizes)}")
        linear = [[layer for layer in module if isinstance(layer, nn.Linear)] for module in modules]
        biases = {layer.bias is not None for layers in linear for layer in layers}
        if len(biases) != 1:
            raise ArgumentError("modules", "either every layer has a bias, or none")
        stack = cls(sizes.pop(), runs=len(modules), biases=biases.pop(), dtype=linear[0][0].weight.dtype)
        with torch.no_grad():
            for i, (weight, bias) in enumerate(stack.layers):
                weight.copy_(torch.stack([layers[i].weight for layers in linear]))
                if bias is not None:
                    bias.copy_(torch.stack([layers[i].bias for layers in linear]))
        return stack


def mlp(sizes: Sequence[int] = PAPER, *, biases: bool = True) -> nn.Sequential:
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
        layers += [nn.Linear(inputs, outputs, bias=biases), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _through(layers: Layers, x: Tensor, shift: Shift | None = None) -> tuple[list[Tensor], Tensor]:
    """Return each layer's inputs and the logits: the one place where the network is computed."""
    inputs, last = [], len(layers) - 1
    for i, (weight, bias) in enumerate(layers):
        inputs.append(x)
        x = torch.bmm(x, weight.mT)
        if bias is not None:
            x.add_(bias[:, None])  # on the CPU faster than baddbmm with a broadcast bias
        if shift is not None:
            shift(i, inputs[i], x)
        if i < last:
            x.relu_()
    return inputs, x


def _draw_layers(
    sizes: Sequence[int], init: str, heads: Heads, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Draw the weight and bias of every layer; only the last one has heads."""
    layers = list(pairwise(sizes))
    return [linear(init, *layer, generator, heads if layer is layers[-1] else ()) for layer in layers]


def _sizes(module: nn.Sequential) -> tuple[int, ...]:
    linear, between = list(module)[::2], list(module)[1::2]
    alternate = len(linear) == len(between) + 1 and all(isinstance(layer, nn.ReLU) for layer in between)
    if not alternate or not all(isinstance(layer, nn.Linear) for layer in linear):
        raise ArgumentError("modules", "each must be an nn.Sequential of Linear, ReLU, …, Linear")
    layers = [layer for layer in linear if isinstance(layer, nn.Linear)]
    return (layers[0].in_features, *(layer.out_features for layer in layers))
