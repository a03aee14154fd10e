"""Model + examples → blocks: the gradient of each chosen output of each example, the rows of G.

Linear and convolution layers need one forward pass, and one backward pass per output, for a whole chunk: hooks
keep each layer's input a, autograd gives the gradient δ at its output. That is right only if the layer was
called once, its parameters were used by that call alone, and its first axis is the examples': all this is
checked, and what fails is differentiated example by example (torch.func, or a loop where that cannot).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import _global_forward_hooks
from torch.utils import _pytree as pytree

from ogd.memory.blocks import Dense, Factored
from ogd.memory.checks import check_options, check_task, check_whole_parameters
from ogd.memory.examples import Chunk, length, take
from ogd.memory.graph import check_visible, uses_of
from ogd.memory.layers import rule_of
from ogd.memory.outputs import Chosen, Outputs, check_labels
from ogd.memory.per_example import CHUNK_BYTES, per_example
from ogd.memory.preserving import preserving
from ogd.memory.store import Piece, appended

Params = Mapping[str, Tensor]
CHUNK_MOST = 256


class _Call:
    """What a hook saw of one call of a layer."""

    def __init__(self, a: Tensor, out: Tensor):
        self.a, self.version = a.detach(), a._version
        # the edge, not the tensor: an in-place ReLU would move the tensor behind itself
        self.edge: GradientEdge = get_gradient_edge(out)
        self.batch = (a.shape[0], out.shape[0])


def output_gradients(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    outputs: Outputs = "true",
    classes: Sequence[int] | None = None,
    chunk_size: int | None = None,
) -> tuple[list[Piece], int]:
    """The gradients of a model's outputs on examples (x, y): the pieces of G, and its number of rows.

    The rows are in the order of the examples, those of one example in the order of its outputs; the columns are
    the trainable parameters. `outputs`, `classes` and `chunk_size` are those of `Memory`, which reads its
    gradients in the same way: in evaluation mode, and the model is as before afterwards.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        >>> pieces, n = output_gradients(model, torch.randn(2, 4), None, outputs="all")
        >>> n, [piece.names for piece in pieces]
        (6, [('0.weight', '0.bias'), ('2.weight', '2.bias')])
    """
    check_options(model, None, outputs, None, chunk_size)
    check_task(classes, None, None)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_model(model, params)
    return gather(Chosen(model, outputs, None, classes), params, [(x, y)], 0, chunk_size)


def gather(
    chosen: Chosen, params: Params, batches: Iterable[Chunk], start: int, chunk_size: int | None
) -> tuple[list[Piece], int]:
    """The pieces of G for a task whose rows begin at `start`, and their number."""
    device = next(iter(params.values())).device
    pieces: list[Piece] = []
    n = start
    with preserving(chosen.model):
        for batch in batches:
            x, y = pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, batch)
            check_labels(y, chosen.outputs, chosen.classes)
            B = length((x, y))
            if not B:
                continue
            chunk_size = chunk_size or fitting(chosen, *take((x, y), slice(0, 1)))
            for i in range(0, B, chunk_size):
                found, rows = collect(chosen, params, *take((x, y), slice(i, i + chunk_size)))
                pieces += [Piece(piece.names, piece.block, n) for piece in found]
                n += rows
    if n == start:
        raise ValueError("data is empty: there is no example to remember")
    check_finite(pieces)
    return appended((), pieces), n - start


def collect(chosen: Chosen, params: Params, x: Any, y: Any) -> tuple[list[Piece], int]:
    """The pieces of G for one chunk, and its number of rows: example by example, output by output."""
    calls, handles = _watch(chosen.model)
    try:
        scores = chosen.scores(x)
    finally:
        for handle in handles:
            handle.remove()
    chosen.check(scores, y)
    f = chosen.choose(scores, y)  # (B, k)
    B = length((x, y))
    if f.ndim != 2 or f.shape[0] != B:
        raise ValueError(f"outputs must have shape ({B},) or ({B}, k) for {B} examples, not {tuple(f.shape)}")
    check_visible(f, chosen.model, params)
    uses = uses_of(f)
    names = {id(p): name for name, p in params.items()}
    layers = {m: c[0] for m, c in calls.items() if len(c) == 1 and _alone(m, c[0], uses, names, B)}
    pieces = _read_layers(f, layers, names)
    covered = {name for piece in pieces for name in piece.names}
    rest = {name: p for name, p in params.items() if name not in covered and uses[id(p)]}
    if rest:
        pieces += [Piece((name,), Dense(G)) for name, G in per_example(chosen, rest, x, y, f.shape[1]).items()]
    if not pieces:
        raise ValueError("the outputs do not depend on any protected parameter: look at logits=, outputs= and params=")
    return pieces, f.numel()


def fitting(chosen: Chosen, x: Any, y: Any) -> int:
    """How many examples fit a chunk, from what autograd keeps for the backward passes of this one."""
    held: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        scores = chosen.scores(x)
    chosen.check(scores, y)
    k = chosen.choose(scores, y).numel()
    weights = {p.untyped_storage().data_ptr() for p in chosen.parameters()}
    each = sum(size for pointer, size in held.items() if pointer not in weights)
    return min(max(CHUNK_BYTES // max(each * k, 1), 1), CHUNK_MOST)


def check_model(model: nn.Module, params: Params) -> None:
    """Something must be trainable, and each example have a gradient of its own, and a real one."""
    if not params:
        raise ValueError("nothing to protect: no chosen parameter is trainable (requires_grad=True)")
    check_whole_parameters(model)
    for name, p in model.named_parameters():
        if p.is_complex():
            raise ValueError(f"{name} is complex: only real parameters can be protected")
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{name or 'the model'} normalises by the batch even in evaluation mode, so no example has a "
                "gradient of its own: use track_running_stats=True"
            )


def check_finite(pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if not all(t.isfinite().all() for t in piece.block.tensors().values()):
            raise ValueError(
                f"the gradient of {' and '.join(piece.names)} is not finite (NaN or infinite): nothing was "
                "stored; look for such values in the data and in the weights"
            )


def _watch(model: nn.Module) -> tuple[dict[nn.Module, list[_Call]], list[Any]]:
    calls: dict[nn.Module, list[_Call]] = {}

    def hook(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        seen = calls.setdefault(layer, [])
        if isinstance(out, Tensor) and out.grad_fn is not None and args:
            seen.append(_Call(args[0], out))

    # first in the queue, so that other hooks cannot have replaced the output; those for all modules come before
    layers = [] if _global_forward_hooks else [layer for layer in model.modules() if rule_of(layer)]
    return calls, [layer.register_forward_hook(hook, prepend=True) for layer in layers]


def _alone(layer: nn.Module, call: _Call, uses: Counter[int], names: Mapping[int, str], B: int) -> bool:
    """Whether the layer's gradient comes from this call only, with the examples on the first axis."""
    own = [p for p in layer._parameters.values() if p is not None]
    return (
        id(layer.weight) in names
        and all(uses[id(p)] == 1 for p in own if id(p) in names)
        and call.a.ndim > 1
        and call.batch == (B, B)
        and call.a._version == call.version
    )


def _read_layers(f: Tensor, layers: Mapping[nn.Module, _Call], names: Mapping[int, str]) -> list[Piece]:
    """One backward pass per output gives every layer its δ; one more shows that δ_i is of example i alone."""
    if not layers:
        return []
    B, k = f.shape
    edges = [call.edge for call in layers.values()]
    passes = [torch.autograd.grad(f[:, j].sum(), edges, retain_graph=True, allow_unused=True) for j in range(k)]
    # weigh example i by v_i, a power of two: its δ must grow by exactly v_i
    powers = torch.randperm(B, generator=torch.Generator().manual_seed(B)) % 8
    v = (2.0**powers).to(f).unsqueeze(1)  # (B, 1)
    probes = torch.autograd.grad((v * f).sum(), edges, retain_graph=True, allow_unused=True)
    pieces = []
    for (layer, call), probe, *ds in zip(layers.items(), probes, *passes, strict=True):
        if probe is None:  # its output is not used, so its weight is used elsewhere
            continue
        d = torch.stack([torch.zeros_like(probe) if d is None else d for d in ds])  # (k, B, ...)
        if _belongs(d, probe, v):
            pieces += _factor(layer, call.a, d, names)
    return pieces


def _belongs(d: Tensor, probe: Tensor, v: Tensor) -> bool:
    """Whether weighing the examples by v weighs their δ alike; d is (k, B, ...), the probe its sum over k."""
    weighted = d.sum(0) * v.view(-1, *[1] * (probe.ndim - 1))
    slack = torch.finfo(d.dtype).eps ** 0.5 * d.abs().amax() * v.amax()
    return bool(((weighted - probe).abs() <= slack).all() | ~probe.isfinite().all())  # NaN is found later


def _factor(layer: nn.Module, a: Tensor, d: Tensor, names: Mapping[int, str]) -> list[Piece]:
    """The layer's piece, factored or dense, whichever is smaller."""
    rule = rule_of(layer)
    assert rule is not None
    read = [rule.read(layer, a, d_j) for d_j in d]
    A = torch.stack([A for A, _ in read], 1).flatten(0, 2)  # (B·k·T, in)
    D = torch.stack([D for _, D in read], 1).flatten(0, 2)  # (B·k·T, out)
    T = len(D) // (d.shape[0] * d.shape[1])
    bias = layer._parameters.get("bias")
    own = [p for p in (layer._parameters["weight"], bias) if p is not None and id(p) in names]
    block = Factored(A.contiguous(), D.contiguous(), bias=len(own) == 2, T=T, out_first=rule.out_first)
    piece = Piece(tuple(names[id(p)] for p in own), block)
    if T * (A.shape[1] + D.shape[1]) < sum(p.numel() for p in own):
        return [piece]
    parts = zip(piece.names, block.split(), strict=True)
    return [Piece((name,), Dense(part.rows(0, block.n).to(D.dtype))) for name, part in parts]
