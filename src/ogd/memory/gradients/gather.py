"""Model + examples → blocks: the gradient of each chosen output of each example, the rows of G.

One forward pass, and one backward pass per output, serve a whole chunk: what went into a layer or an operation is
known, and autograd gives the gradient δ at its output (`calls`, `uses`, `reading`). A parameter that was used
several times, or in a way that is not known, is differentiated example by example (torch.func, or a loop where that
cannot).
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

from ogd.long_work import say
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece, appended
from ogd.memory.checks import check_options, check_parameters, check_task
from ogd.memory.gradients.autograd_graph import check_visible, uses_of
from ogd.memory.gradients.deltas import read, sources
from ogd.memory.gradients.layer_calls import watching
from ogd.memory.gradients.per_example import CHUNK_BYTES, per_example
from ogd.memory.gradients.preserving import preserving
from ogd.memory.inputs.batches import Chunk, length, moved, take
from ogd.memory.inputs.outputs import Chosen, Outputs, check_labels

Params = Mapping[str, Tensor]
CHUNK_MOST = 256


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
    pieces, n = gather(Chosen(model, outputs, None, classes), params, [(x, y)], 0, chunk_size)
    check_dependent(bool(pieces))
    return pieces, n


def gather(
    chosen: Chosen,
    params: Params,
    batches: Iterable[Chunk],
    start: int,
    chunk_size: int | None,
    dtype: torch.dtype | None = None,
    expected: int | None = None,
) -> tuple[list[Piece], int]:
    """The pieces of G for a task whose rows begin at `start`, and their number; about `expected` examples come.

    There are no pieces where no output depends on any of the parameters.
    """
    device = next(iter(params.values())).device
    pieces: list[Piece] = []
    n = start
    with preserving(chosen.model):
        for batch in batches:
            x, y = moved(batch, device)
            check_labels(y, chosen.outputs, chosen.classes)
            B = length((x, y))
            if not B:
                continue
            chunk_size = chunk_size or fitting(chosen, *take((x, y), slice(0, 1)))
            for i in range(0, B, chunk_size):
                began = time.thread_time()  # not the clock: a busy machine is no long work
                found, rows = collect(chosen, params, *take((x, y), slice(i, i + chunk_size)))
                pieces += [replace(piece, block=_stored(piece, params, dtype), start=n) for piece in found]
                if n == start and expected is not None:
                    _say(expected, min(chunk_size, B - i), time.thread_time() - began, pieces)
                n += rows
    if n == start:
        raise ValueError("data is empty: there is no example to remember")
    check_finite(pieces)
    joined = appended((), _given_up(pieces))
    return completed(joined, params, start, n - start) if joined else [], n - start


def completed(pieces: Sequence[Piece], params: Params, start: int, rows: int) -> list[Piece]:
    """The pieces of a task, and zeros for rows that none of them holds.

    Such rows come from a chunk of which no example used a protected parameter, as where examples are routed.
    """
    missing, stop = [], start
    name, p = min(params.items(), key=lambda item: item[1].numel())
    for piece in (*sorted(pieces, key=lambda piece: piece.start), None):
        first = start + rows if piece is None else piece.start
        if first > stop:
            missing.append(Piece((name,), Dense(p.new_zeros(first - stop, p.numel())), stop))
        stop = stop if piece is None else max(stop, piece.stop)
    return [*pieces, *missing]


def check_dependent(found: bool) -> None:
    """Raise if no output of a task depends on a protected parameter."""
    if not found:
        raise ValueError("the outputs do not depend on any protected parameter: look at logits=, outputs= and params=")


def _given_up(pieces: list[Piece]) -> Iterator[Piece]:
    """The pieces in their order, taken out of the list, so that their memory is free once they are joined."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def collect(chosen: Chosen, params: Params, x: Any, y: Any) -> tuple[list[Piece], int]:
    """The pieces of G for one chunk, and its number of rows: example by example, output by output."""
    with watching(chosen.model) as calls:
        scores = chosen.scores(x)
    chosen.check(scores, y)
    f = chosen.choose(scores, y)  # (B, k)
    B = length((x, y))
    if f.ndim != 2 or f.shape[0] != B:
        raise ValueError(f"outputs must have shape ({B},) or ({B}, k) for {B} examples, not {tuple(f.shape)}")
    check_visible(f, chosen.model, params)
    uses = uses_of(f)
    names = {id(p): name for name, p in params.items()}
    pieces = read(f, sources(f, calls, names, uses))
    covered = {name for piece in pieces for name in piece.names}
    rest = {name: p for name, p in params.items() if name not in covered and uses[id(p)]}
    if rest:
        chosen.slow |= {
            name: "it is used in a way that is not known" if uses[id(p)] == 1 else f"it is used {uses[id(p)]} times"
            for name, p in rest.items()
        }
        pieces += [Piece((name,), Dense(G)) for name, G in per_example(chosen, rest, x, y, f.shape[1]).items()]
    place = {name: i for i, name in enumerate(params)}
    return sorted(pieces, key=lambda piece: place[piece.names[0]]), f.numel()


def _say(expected: int, done: int, seconds: float, pieces: Sequence[Piece]) -> None:
    """Say what remembering will take, judged by its first chunk; one under three seconds says nothing about time."""
    nbytes = sum(piece.block.nbytes for piece in pieces)
    times = expected / done
    say(f"remembering up to {expected:,} examples", times * seconds if seconds > 3 else 0, times * nbytes)


def check_dtype(dtype: object) -> None:
    """Whether gradients can be stored so."""
    if dtype is not None and dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"dtype must be None or a floating-point type such as torch.bfloat16, not {dtype!r}")


def _stored(piece: Piece, params: Params, dtype: torch.dtype | None) -> Block:
    """The block in `dtype`, or as its parameter is: a model that uses autocast computes in another type."""
    return piece.block.to(piece.block.device, dtype or params[piece.names[0]].dtype)


def fitting(chosen: Chosen, x: Any, y: Any) -> int:
    """How many examples fit a chunk, from what autograd keeps for the backward passes of this one."""
    held: dict[int, int] = {}

    def count(t: Tensor) -> None:  # of a view its own bytes: the example may be a row of a whole data set
        storage = t.untyped_storage()
        held[storage.data_ptr()] = min(held.get(storage.data_ptr(), 0) + t.nbytes, storage.nbytes())
        # keep nothing: a node that held its own output would never be freed

    with torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing):
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
    check_parameters(model)
    for name, p in model.named_parameters():
        if p.is_complex():
            raise ValueError(f"{name} is complex: only real parameters can be protected")
    for name, module in model.named_modules():
        if isinstance(module, ScriptModule) and (len(module._parameters) or len(module._buffers)):
            raise ValueError(
                f"{name or 'the model'} is a ScriptModule, into which no hook can look: train and remember the module "
                "that was scripted or traced, and script it afterwards"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{name or 'the model'} normalises by the batch even in evaluation mode, so no example has a "
                "gradient of its own: use track_running_stats=True"
            )


def check_finite(pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if not all(_finite(t) for t in piece.block.tensors().values()):
            raise ValueError(
                f"the gradient of {' and '.join(piece.names)} is not finite (NaN or infinite): nothing was "
                "stored; look for such values in the data and in the weights"
            )


def _finite(t: Tensor) -> bool:
    """Whether all numbers are finite: if their sum is, they are, and a sum is quicker."""
    return bool(t.sum().isfinite()) or bool(t.isfinite().all())
