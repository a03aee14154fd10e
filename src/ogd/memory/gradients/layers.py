"""Layers whose gradients factor: a table of rules by the type of the layer, and hooks that record the inputs.

A layer in the table computes y = x U + b for every position of its input, or is a convolution. Most rules come from
a reader, which returns A (B, T, in) and D (B, T, out) from the input x and the gradient d at the output (batch
first). The sum of their T outer products is the example's gradient of the weight.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.nn.modules.module import _global_forward_hooks

from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.factoring import convolution_pieces, outer_pieces
from ogd.memory.gradients.weight_uses import Use
from ogd.memory.ranks.sharded_parameters import original_type

Reader = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Rule:
    """The function that makes the pieces of G for a type of layer, from its parameters' names, x and the k δ."""

    pieces: Callable[[Any, Sequence[str], Tensor, Tensor], list[Piece]]  # x (B, ...), δ (k, B, ...)


_RULES: dict[type[nn.Module], Rule] = {}


def register_layer(layer: type[nn.Module], read: Reader, *, out_first: bool = True) -> None:
    """Register how the gradients of a type of layer factor, so that they are stored factored instead of dense.

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
    """Return the rule of a layer; None if `weight_uses` must find the uses of its parameters in the graph."""
    # a computed weight (weight norm, a parametrisation) is not a parameter of the layer
    own_weight = isinstance(layer._parameters.get("weight"), nn.Parameter)
    # a grouped convolution is not a single matrix product
    grouped = getattr(layer, "groups", 1) > 1
    # a forward that is set on the layer object may compute anything
    own_forward = "forward" in vars(layer)
    return _RULES.get(original_type(layer)) if own_weight and not grouped and not own_forward else None


class Call:
    """The input and the gradient edge of one call of a layer, with the weight and the bias that it used."""

    def __init__(self, layer: nn.Module, a: Tensor, out: Tensor):
        self.own = [layer._parameters["weight"], layer._parameters.get("bias")]  # FSDP changes them after the call
        self.a, self.version = a.detach(), a._version
        # the edge, because an in-place ReLU would change the node of the tensor
        self.edge: GradientEdge = get_gradient_edge(out)
        self.batch = (a.shape[0], out.shape[0])


Calls = dict[nn.Module, list[Call]]


@contextmanager
def record_calls(model: nn.Module) -> Iterator[Calls]:
    """Record every call of a layer with a rule inside the block."""
    calls: Calls = {}

    def hook(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        seen = calls.setdefault(layer, [])
        if isinstance(out, Tensor) and out.grad_fn is not None and args:
            seen.append(Call(layer, args[0], out))

    # before other hooks, which may replace the output; but global hooks always run first, so then no call is recorded
    layers = [] if _global_forward_hooks else [layer for layer in model.modules() if rule_of(layer)]
    handles = [layer.register_forward_hook(hook, prepend=True) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def layer_uses(calls: Calls, names: Mapping[int, str], uses: Counter[int], B: int) -> Iterator[Use]:
    """Yield the uses of layers that were called once, on B examples, and whose parameters nothing else uses."""
    for layer, seen in calls.items():
        if len(seen) == 1 and _is_only_use(seen[0], uses, names, B):
            yield _use(layer, seen[0], names)


def _is_only_use(call: Call, uses: Counter[int], names: Mapping[int, str], B: int) -> bool:
    """Return whether the layer's gradient comes from this call only, with the examples on the first axis."""
    own = [p for p in call.own if p is not None]
    return (
        id(call.own[0]) in names
        and all(uses[id(p)] == 1 for p in own if id(p) in names)
        and call.a.ndim > 1
        and call.batch == (B, B)
        and call.a._version == call.version
    )


def _use(layer: nn.Module, call: Call, names: Mapping[int, str]) -> Use:
    rule = rule_of(layer)
    assert rule is not None
    named = tuple(names[id(p)] for p in call.own if p is not None and id(p) in names)

    def pieces(d: Tensor, axis: int) -> list[Piece]:
        return rule.pieces(layer, named, call.a, d)

    return Use(named, call.edge, pieces, lambda t, B, axis: t if axis == 0 else None)


def _positions(x: Tensor) -> Tensor:
    """Reshape (B, ..., in) → (B, T, in)."""
    return x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)


def _linear(layer: nn.Linear, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return _positions(x), _positions(d)


def _convolution(layer: nn.Conv1d | nn.Conv2d, names: Sequence[str], x: Tensor, d: Tensor) -> list[Piece]:
    sides = layer._reversed_padding_repeated_twice  # before and after each axis, the last axis first
    padding = sides[::-2]
    if layer.padding_mode != "zeros" or sides[::2] != sides[1::2]:  # not the same zeros on both sides
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = functional.pad(x, sides, mode=mode), [0] * len(padding)
    return convolution_pieces(
        names, x.unsqueeze(0), d, layer.kernel_size, stride=layer.stride, padding=padding, dilation=layer.dilation
    )


register_layer(nn.Linear, _linear)
_RULES |= {nn.Conv1d: Rule(_convolution), nn.Conv2d: Rule(_convolution)}
