"""The uses of a weight, read from the autograd graph, by any layer, function or operator.

    matrix product    x W, also in attention's packed projections and in layers other than nn.Linear
    convolution       grouped or transposed
    look-up           rows of an embedding's table
    normalisation     x̂ γ + β
    sum, product      x + p, x p, and p repeated for every example

A node of the graph has saved the tensors that its backward pass needs. With the gradient δ at its output they give each
example's gradient of the weight. The graph does not show which axis is that of the examples, so `deltas` tries the
first and the second.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional

from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece
from ogd.memory.blocks.sparse import Sparse
from ogd.memory.gradients.autograd_graph import nodes_of
from ogd.memory.gradients.factoring import convolution_pieces, flatten_rows, outer_pieces

Pieces = Callable[[Tensor, int], list[Piece]]
Leaf = tuple[str, Tensor]


@dataclass(frozen=True)
class Use:
    """One use of some parameters: the edge at which δ is taken, and the function that makes pieces of G from δ.

    `by_example(t, B, axis)` arranges a tensor of δ's shape as (B, ...), or returns None if it cannot. `pieces` takes
    the arranged δ of all k outputs, (k, B, ...).
    """

    names: tuple[str, ...]
    edge: GradientEdge
    pieces: Pieces
    by_example: Callable[[Tensor, int, int], Tensor | None]


def weight_uses(f: Tensor, names: Mapping[int, str], uses: Counter[int]) -> Iterator[Use]:
    """Yield the uses of the named parameters that are used once."""

    def leaf(node: Any, i: int) -> Leaf | None:
        if i >= len(node.next_functions):
            return None
        p = getattr(node.next_functions[i][0], "variable", None)
        return (names[id(p)], p) if p is not None and id(p) in names and uses[id(p)] == 1 else None

    for node in nodes_of(f):
        read = _READERS.get(node.name())
        if read is not None:
            try:
                yield from read(node, leaf)
            except RuntimeError:  # a saved tensor was freed or changed; backward() raises if it needs it
                continue


def _first_axis(t: Tensor, B: int, axis: int) -> Tensor | None:
    return t.movedim(axis, 0) if t.ndim > axis and t.shape[axis] == B else None


def _unfold_examples(t: Tensor, B: int, axis: int) -> Tensor | None:
    """Reshape (B·T, w) or (T·B, w) → (B, T, w)."""
    if len(t) % B:
        return None
    return torch.unflatten(t, 0, (B, -1)) if axis == 0 else torch.unflatten(t, 0, (-1, B)).transpose(0, 1)


Find = Callable[[Any, int], Leaf | None]


def _product(node: Any, leaf: Find) -> Iterator[Use]:
    at = 2 if node.name() == "AddmmBackward0" else 1
    x = node._saved_mat1 if at == 2 else node._saved_self
    behind = node.next_functions[at][0]
    turned = behind is not None and behind.name() == "TBackward0"
    weight = leaf(behind, 0) if turned else leaf(node, at)
    bias = leaf(node, 0) if at == 2 and node._saved_alpha == node._saved_beta == 1 else None
    if weight is None or x is None or (at == 2 and node._saved_alpha != 1):
        return
    named = (weight[0], bias[0]) if bias is not None and bias[1].ndim == 1 else (weight[0],)

    def pieces(d: Tensor, axis: int) -> list[Piece]:
        A = _unfold_examples(x.detach(), d.shape[1], axis)
        assert A is not None
        return outer_pieces(named, A.expand(len(d), *A.shape), d, out_first=turned)

    yield Use(named, GradientEdge(node, 0), pieces, _unfold_examples)


def _table(node: Any, leaf: Find) -> Iterator[Use]:
    weight, index = leaf(node, 0), node._saved_indices
    if weight is None or node._saved_scale_grad_by_freq:
        return
    name, table = weight

    def pieces(d: Tensor, axis: int) -> list[Piece]:
        v = index.movedim(axis, 0).reshape(index.shape[axis], -1)  # (B, T)
        D = d.reshape(*d.shape[:2], -1, d.shape[-1]) * (v != node._saved_padding_idx).unsqueeze(-1)  # (k, B, T, w)
        rows = flatten_rows(v.expand(len(d), *v.shape)).flatten()
        T = v.shape[1]
        block = Sparse(rows.to(torch.int32, copy=True), flatten_rows(D).flatten(0, 1).contiguous(), len(table), T)
        if T * (block.grain + 1) < table.numel():
            return [Piece((name,), block)]
        return [Piece((name,), Dense(block.rows(0, block.n).to(d.dtype)))]

    yield Use(
        (name,), GradientEdge(node, 0), pieces, lambda t, B, axis: _first_axis(t, B, axis) if t.ndim > 1 else None
    )


def _convolution(node: Any, leaf: Find) -> Iterator[Use]:
    weight, bias, x = leaf(node, 1), leaf(node, 2), node._saved_input
    if bias is not None:
        yield _broadcast(bias, node, lambda d, axis: d, channel=True)
    if weight is None or x.ndim not in (3, 4) or (node._saved_transposed and node._saved_groups > 1):
        return
    name, w = weight
    geometry = {key: tuple(getattr(node, f"_saved_{key}")) for key in ("dilation", "padding", "stride")}
    groups, swapped = node._saved_groups, node._saved_transposed

    def pieces(d: Tensor, axis: int) -> list[Piece]:
        seen = x.detach().unsqueeze(0)
        # a transposed convolution swaps input and output
        one, other = (d, seen) if swapped else (seen, d)
        return convolution_pieces((name,), one, other, w.shape[2:], groups=groups, **geometry)

    yield Use((name,), GradientEdge(node, 0), pieces, lambda t, B, axis: t if axis == 0 and len(t) == B else None)


def _broadcast(p: Leaf, node: Any, factor: Callable[[Tensor, int], Tensor], channel: bool = False) -> Use:
    """Return the use of a parameter that is broadcast; `factor(d, axis)` is δ times the factor of the parameter."""
    name, tensor = p

    def shape(ndim: int) -> list[int]:
        if channel:  # one number per index of the second axis
            return [1, tensor.numel(), *[1] * (ndim - 2)]
        return [1] * (ndim - tensor.ndim) + list(tensor.shape)

    def by_example(t: Tensor, B: int, axis: int) -> Tensor | None:
        fits = t.ndim > max(axis, tensor.ndim - 1) and shape(t.ndim)[axis] == 1
        return _first_axis(t, B, axis) if fits and not (channel and axis) else None

    def pieces(d: Tensor, axis: int) -> list[Piece]:
        sizes = shape(d.ndim - 1)
        del sizes[axis]
        summed = [i + 2 for i, size in enumerate(sizes) if size == 1]
        G = factor(d, axis)
        G = flatten_rows(G.sum(summed) if summed else G).reshape(d.shape[0] * d.shape[1], -1)
        return [Piece((name,), Dense(G))]

    return Use((name,), GradientEdge(node, 0), pieces, by_example)


def _normalisation(node: Any, leaf: Find) -> Iterator[Use]:
    x, kind = node._saved_input, node.name()
    channel = kind != "NativeLayerNormBackward0"
    if kind == "NativeBatchNormBackward0" and node._saved_training:
        return

    def normal() -> Tensor:
        if kind == "NativeLayerNormBackward0":
            return torch.mul(x - node._saved_result1, node._saved_result2)
        if kind == "NativeGroupNormBackward0":
            return functional.group_norm(x, node._saved_group, eps=node._saved_eps)
        return functional.batch_norm(x, node._saved_running_mean, node._saved_running_var, eps=node._saved_eps)

    def times_normal(d: Tensor, axis: int) -> Tensor:
        with torch.no_grad():
            return d * normal().movedim(axis, 0)

    if (weight := leaf(node, 1)) is not None:
        yield _broadcast(weight, node, times_normal, channel)
    if (bias := leaf(node, 2)) is not None:
        yield _broadcast(bias, node, lambda d, axis: d, channel)


def _sum(node: Any, leaf: Find) -> Iterator[Use]:
    alpha = getattr(node, "_saved_alpha", 1)
    scales = (1, -alpha if node.name() == "SubBackward0" else alpha)
    for i, scale in enumerate(scales):
        if (p := leaf(node, i)) is not None:
            yield _broadcast(p, node, lambda d, axis, scale=scale: scale * d)  # type: ignore[misc]


def _scaling(node: Any, leaf: Find) -> Iterator[Use]:
    for i, other in enumerate(("_saved_other", "_saved_self")):
        if (p := leaf(node, i)) is not None:
            yield _broadcast(p, node, lambda d, axis, key=other: _times(getattr(node, key), d, axis))  # type: ignore[misc]


def _times(x: Tensor, d: Tensor, axis: int) -> Tensor:
    """Return δ times x, which may lack leading axes of δ."""
    x = x.detach()
    return d * x[(None,) * (d.ndim - 1 - x.ndim)].movedim(axis, 0)


_READERS: dict[str, Callable[[Any, Find], Iterator[Use]]] = {
    "AddmmBackward0": _product,
    "MmBackward0": _product,
    "ConvolutionBackward0": _convolution,
    "EmbeddingBackward0": _table,
    "NativeBatchNormBackward0": _normalisation,
    "NativeLayerNormBackward0": _normalisation,
    "NativeGroupNormBackward0": _normalisation,
    "AddBackward0": _sum,
    "SubBackward0": _sum,
    "ExpandBackward0": _sum,
    "MulBackward0": _scaling,
}
