"""Initial weights: how a layer's weights are drawn before the first task.

A layer with `fan_in` inputs and `fan_out` outputs draws uniformly within ±bound:

    pytorch    1/√fan_in                 weights and biases, as nn.Linear and nn.Conv2d do
    glorot     √(6 / (fan_in + fan_out))  weights; biases are zero
    he         √(6 / fan_in)              weights; biases are zero

In the last layer of a network with several heads, `fan_out` is the size of an output's own head.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

Heads = Sequence[Sequence[int]]  # the outputs of each head; none: one head over all of them


def bounds(init: str, fan_in: int, outputs: int, heads: Heads = (), field: int = 1) -> Tensor:
    """Return the bound of every output's weights, (out,); a convolution's `field` is the size of its kernel."""
    fan_outs = torch.full((outputs,), float(outputs * field))
    for head in heads:
        fan_outs[list(head)] = float(len(head))
    if init == "pytorch":
        return torch.full_like(fan_outs, fan_in**-0.5)
    if init == "he":
        return torch.full_like(fan_outs, (6 / fan_in) ** 0.5)
    return (6 / (fan_in + fan_outs)).sqrt()


def linear(init: str, inputs: int, outputs: int, generator: Generator, heads: Heads = ()) -> tuple[Tensor, Tensor]:
    """Draw the weight (out, in) and the bias (out,) of a linear layer."""
    if init == "pytorch":
        bound = inputs**-0.5
        weight = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
        return weight, torch.empty(outputs).uniform_(-bound, bound, generator=generator)
    unit = torch.empty(outputs, inputs).uniform_(-1, 1, generator=generator)
    return unit * bounds(init, inputs, outputs, heads)[:, None], torch.zeros(outputs)


@torch.no_grad()
def draw_again(module: nn.Module, init: str, generator: Generator, heads: Heads = ()) -> None:
    """Draw the weights of a module's linear layers and convolutions anew, unless `init` is PyTorch's own.

    The last of them has the heads.
    """
    if init == "pytorch":
        return
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    layers = [layer for layer in module.modules() if isinstance(layer, kinds)]
    for layer in layers:
        weight, bias = layer.weight, layer.bias
        fan_in, field = weight[0].numel(), weight[0, 0].numel()
        bound = bounds(init, fan_in, len(weight), heads if layer is layers[-1] else (), field)
        unit = torch.empty(weight.shape).uniform_(-1, 1, generator=generator)
        weight.copy_(unit * bound.view(-1, *[1] * (weight.ndim - 1)))
        if bias is not None:
            bias.zero_()
