"""How a layer's gradient factors into outer products: a table from the layer's type to a reader of factors.

A layer in the table computes y = x U + b for every position of its input. From its input x and the gradient d
at its output (batch first) a reader returns A (B, T, in) and D (B, T, out), whose T outer products, summed,
are the example's gradient of the weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

Reader = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Rule:
    """How the factors of one type of layer are read, and how its weight lies."""

    read: Reader
    out_first: bool = True  # the weight is (out, in, ...); else (in, out)


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
    _RULES[layer] = Rule(read, out_first)


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


def patches(
    x: Tensor, kernel: Sequence[int], *, dilation: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """What a convolution sees at each of its positions: x (B, C, length) or (B, C, H, W) → (B, T, C · kernel)."""
    if x.ndim == 3:  # unfold knows images only: a sequence is an image of height 1
        x, kernel, dilation, stride, padding = x.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride), (0, *padding)
    sizes = [tuple(size) for size in (kernel, dilation, padding, stride)]
    return functional.unfold(x, *sizes).mT


def _conv(layer: nn.Conv1d | nn.Conv2d, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    none = [0] * len(layer.kernel_size)
    A = patches(x, layer.kernel_size, dilation=layer.dilation, stride=layer.stride, padding=none)
    return A, d.flatten(2).mT


for _type, _read in ((nn.Linear, _linear), (nn.Conv1d, _conv), (nn.Conv2d, _conv)):
    register_layer(_type, _read)
