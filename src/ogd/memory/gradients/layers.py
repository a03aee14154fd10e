"""How a layer's gradient is read: a table from the layer's type to a rule.

A layer in the table computes y = x U + b for every position of its input, or is a convolution. Of most layers the
rule comes from a reader: from the input x and the gradient d at the output (batch first) it returns A (B, T, in) and
D (B, T, out), whose T outer products, summed, are the example's gradient of the weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.factoring import convolution_pieces, outer_pieces

Reader = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Rule:
    """How one type of layer has its pieces of G: from the names of its parameters, x and the δ of k outputs."""

    pieces: Callable[[Any, Sequence[str], Tensor, Tensor], list[Piece]]  # x (B, ...), δ (k, B, ...)


_RULES: dict[type[nn.Module], Rule] = {}


def register_layer(layer: type[nn.Module], read: Reader, *, out_first: bool = True) -> None:
    """Tell how the gradients of a type of layer factor, so that they are stored factored instead of dense.

    The layer's parameters must be `weight` and optionally `bias`, and `read(layer, x, d)` must return
    A (B, T, in) and D (B, T, out) from its input x and the gradient d at its output, such that the gradient
    of example i is Σ_t D[i, t] ⊗ A[i, t] for the weight, (out, in) or with `out_first=False` its transpose,
    and Σ_t D[i, t] for the bias. Subclasses of the layer are not included: they may compute something else.

    Examples:
        >>> class Affine(nn.Linear):  # computes what nn.Linear computes
        ...     pass
        >>> register_layer(Affine, lambda layer, x, d: (x.flatten(1, -2), d.flatten(1, -2)))
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TypeError(f"layer must be a subclass of nn.Module, not {layer!r}")
    if not callable(read):
        raise TypeError(f"read must be a function (layer, x, d) → (A, D), not {read!r}")

    def pieces(layer: nn.Module, names: Sequence[str], x: Tensor, d: Tensor) -> list[Piece]:
        factors = [read(layer, x, d_j) for d_j in d]
        A, D = (torch.stack([pair[i] for pair in factors]) for i in (0, 1))  # (k, B, T, ·)
        return outer_pieces(names, A, D, out_first)

    _RULES[layer] = Rule(pieces)


def rule_of(layer: nn.Module) -> Rule | None:
    """The rule of a layer, or None: then `uses` finds in the graph how its parameters were used."""
    rule = _RULES.get(type(layer))
    # a weight that something else computes (weight norm, a parametrisation) is no parameter of the layer
    own_weight = isinstance(layer._parameters.get("weight"), nn.Parameter)
    # a grouped convolution is no one matrix product
    grouped = getattr(layer, "groups", 1) > 1
    # a forward put on the layer itself may compute anything
    own_forward = "forward" in vars(layer)
    return rule if own_weight and not grouped and not own_forward else None


def _positions(x: Tensor) -> Tensor:
    """(B, ..., in) → (B, T, in)."""
    return x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)


def _linear(layer: nn.Linear, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return _positions(x), _positions(d)


def _convolution(layer: nn.Conv1d | nn.Conv2d, names: Sequence[str], x: Tensor, d: Tensor) -> list[Piece]:
    sides = layer._reversed_padding_repeated_twice  # before and after each axis, the last axis first
    padding = sides[::-2]
    if layer.padding_mode != "zeros" or sides[::2] != sides[1::2]:  # what zeros on both sides are not
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = functional.pad(x, sides, mode=mode), [0] * len(padding)
    return convolution_pieces(
        names, x.unsqueeze(0), d, layer.kernel_size, stride=layer.stride, padding=padding, dilation=layer.dilation
    )


register_layer(nn.Linear, _linear)
_RULES |= {nn.Conv1d: Rule(_convolution), nn.Conv2d: Rule(_convolution)}
