"""What went into the layers of the table in `layers` and where it came out, seen by hooks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import _global_forward_hooks

from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.layers import rule_of
from ogd.memory.gradients.weight_uses import Use


class Call:
    """What a hook saw of one call of a layer."""

    def __init__(self, a: Tensor, out: Tensor):
        self.a, self.version = a.detach(), a._version
        # the edge, not the tensor: an in-place ReLU would move the tensor behind itself
        self.edge: GradientEdge = get_gradient_edge(out)
        self.batch = (a.shape[0], out.shape[0])


Calls = dict[nn.Module, list[Call]]


@contextmanager
def watching(model: nn.Module) -> Iterator[Calls]:
    """Inside, every call of a layer that has a rule is seen."""
    calls: Calls = {}

    def hook(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        seen = calls.setdefault(layer, [])
        if isinstance(out, Tensor) and out.grad_fn is not None and args:
            seen.append(Call(args[0], out))

    # first in the queue, so that other hooks cannot have replaced the output; those for all modules come before
    layers = [] if _global_forward_hooks else [layer for layer in model.modules() if rule_of(layer)]
    handles = [layer.register_forward_hook(hook, prepend=True) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def layer_uses(calls: Calls, names: Mapping[int, str], uses: Counter[int], B: int) -> Iterator[Use]:
    """The uses of layers that were called once, on B examples, and whose parameters nothing else used."""
    for layer, seen in calls.items():
        if len(seen) == 1 and _alone(layer, seen[0], uses, names, B):
            yield _use(layer, seen[0], names)


def _alone(layer: nn.Module, call: Call, uses: Counter[int], names: Mapping[int, str], B: int) -> bool:
    """Whether the layer's gradient comes from this call only, with the examples on the first axis."""
    own = [p for p in layer._parameters.values() if p is not None]
    return (
        id(layer.weight) in names
        and all(uses[id(p)] == 1 for p in own if id(p) in names)
        and call.a.ndim > 1
        and call.batch == (B, B)
        and call.a._version == call.version
    )


def _use(layer: nn.Module, call: Call, names: Mapping[int, str]) -> Use:
    rule = rule_of(layer)
    assert rule is not None
    own = [layer._parameters["weight"], layer._parameters.get("bias")]
    named = tuple(names[id(p)] for p in own if p is not None and id(p) in names)

    def pieces(d: Tensor, axis: int) -> list[Piece]:
        return rule.pieces(layer, named, call.a, d)

    return Use(named, call.edge, pieces, lambda t, B, axis: t if axis == 0 else None)
