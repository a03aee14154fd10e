"""Model + examples → pieces of G, the gradients of each chosen output of each example.

A chunk of examples needs one forward pass, and one backward pass per output. These give the input of each layer or
operation and the gradient δ at its output (`layers`, `weight_uses`, `deltas`). A parameter that is used several times,
or by an unknown operation, is differentiated example by example (`per_example`).
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ogd.long_work import warn_if_long
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece, append_pieces
from ogd.memory.data.batches import CHUNK_BYTES, CHUNK_SIZE, Chunk, length, take, to_device
from ogd.memory.gradients.autograd_graph import check_visible, count_uses
from ogd.memory.gradients.deltas import pieces_of_uses
from ogd.memory.gradients.layers import layer_uses, record_calls
from ogd.memory.gradients.outputs import ChosenOutputs, check_inputs, check_labels
from ogd.memory.gradients.per_example import per_example
from ogd.memory.gradients.weight_uses import weight_uses
from ogd.memory.model.eval_mode import isolated_eval_mode
from ogd.memory.ranks.collective import gather_results
from ogd.memory.ranks.sharded_parameters import is_sharded, local
from ogd.tensor_files import is_finite

Params = Mapping[str, Tensor]


def gather(
    chosen: ChosenOutputs,
    params: Params,
    batches: Iterable[Chunk],
    start: int,
    chunk_size: int | None,
    dtype: torch.dtype | None = None,
    expected: int | None = None,
) -> tuple[list[Piece], int]:
    """Return the pieces of G for a task of about `expected` examples, from row `start`, and the number of rows.

    There are no pieces if no output depends on any of the parameters.
    """
    device = next(iter(params.values())).device
    pieces: list[Piece] = []
    n = start
    with isolated_eval_mode(chosen.model):
        for batch in batches:
            x, y = to_device(batch, device)
            check_labels(y, chosen.outputs, chosen.classes)
            check_inputs(chosen, x, y)
            B = length((x, y))
            if not B:
                continue
            chunk_size = chunk_size or fitting_chunk_size(chosen, *take((x, y), slice(0, 1)))
            if is_sharded(chosen.model):  # all ranks must go through it equally often
                chunk_size = min(gather_results(partial(int, chunk_size), "count its bytes"))
            for i in range(0, B, chunk_size):
                began = time.thread_time()  # CPU time, because a busy machine does not make the work longer
                found, rows = collect(chosen, params, *take((x, y), slice(i, i + chunk_size)))
                pieces += [replace(piece, block=_stored_block(piece, params, dtype), start=n) for piece in found]
                if n == start and expected is not None:
                    _announce(expected, min(chunk_size, B - i), time.thread_time() - began, pieces)
                n += rows
    if n == start:
        raise ValueError("data is empty: there is no example to remember")
    check_finite(pieces)
    joined = append_pieces((), _drain(pieces))
    return fill_missing_rows(joined, params, start, n - start) if joined else [], n - start


def fill_missing_rows(pieces: Sequence[Piece], params: Params, start: int, rows: int) -> list[Piece]:
    """Return the pieces of a task, and zeros for the rows that none of them holds.

    Such rows come from a chunk in which no example used a protected parameter, for example in a mixture of experts.
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
    """Raise a ValueError if no output of a task depends on a protected parameter."""
    if not found:
        raise ValueError("the outputs do not depend on any protected parameter: check logits=, outputs= and params=")


def _drain(pieces: list[Piece]) -> Iterator[Piece]:
    """Remove the pieces from the list in their order, so that their memory becomes free after they are copied."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def collect(chosen: ChosenOutputs, params: Params, x: Any, y: Any) -> tuple[list[Piece], int]:
    """Return the pieces of G for one chunk, example by example and output by output, and the number of rows."""
    with record_calls(chosen.model) as calls:
        scores = chosen.scores(x)
    chosen.check(scores, y)
    f = chosen.choose(scores, y)  # (B, k)
    B = length((x, y))
    if f.ndim != 2 or f.shape[0] != B:
        raise ValueError(f"outputs must have shape ({B},) or ({B}, k) for {B} examples, not {tuple(f.shape)}")
    check_visible(f, chosen.model, params)
    uses = count_uses(f)
    names = {id(p): name for name, p in params.items()}
    found = list(layer_uses(calls, names, uses, B))
    others = {i: name for i, name in names.items() if all(name not in use.names for use in found)}
    pieces = pieces_of_uses(f, [*found, *weight_uses(f, others, uses)])
    covered = {name for piece in pieces for name in piece.names}
    rest = {name: p for name, p in params.items() if name not in covered and uses[id(p)]}
    if rest:
        chosen.slow |= {
            name: "it is used by an unknown operation" if uses[id(p)] == 1 else f"it is used {uses[id(p)]} times"
            for name, p in rest.items()
        }
        pieces += [Piece((name,), Dense(G)) for name, G in per_example(chosen, rest, x, y, f.shape[1]).items()]
    place = {name: i for i, name in enumerate(params)}
    return sorted(pieces, key=lambda piece: place[piece.names[0]]), f.numel()


def _announce(expected: int, done: int, seconds: float, pieces: Sequence[Piece]) -> None:
    """Estimate the time and memory of the task from its first chunk; ignore times under three seconds."""
    nbytes = sum(piece.block.nbytes for piece in pieces)
    times = expected / done
    warn_if_long(f"remembering up to {expected:,} examples", times * seconds if seconds > 3 else 0, times * nbytes)


def _stored_block(piece: Piece, params: Params, dtype: torch.dtype | None) -> Block:
    """Return the block in `dtype` or the type of its parameter, from which autocast may differ."""
    return piece.block.to(piece.block.device, dtype or params[piece.names[0]].dtype)


def fitting_chunk_size(chosen: ChosenOutputs, x: Any, y: Any) -> int:
    """Return the number of examples per chunk, from the bytes that autograd saves for this example."""
    held: dict[int, int] = {}

    def weights() -> set[int]:
        return {local(p).untyped_storage().data_ptr() for p in chosen.parameters()}

    def count(t: Tensor) -> None:  # count only a view's own bytes: it may be a row of a whole data set
        storage = t.untyped_storage()
        if sharded and storage.data_ptr() in weights():  # the weights are whole only now
            return
        held[storage.data_ptr()] = min(held.get(storage.data_ptr(), 0) + t.nbytes, storage.nbytes())
        # return nothing, because a node that holds its own output is never freed

    sharded = is_sharded(chosen.model)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing):
        scores = chosen.scores(x)
    chosen.check(scores, y)
    k = chosen.choose(scores, y).numel()
    known = weights()
    each = sum(size for pointer, size in held.items() if pointer not in known)
    return min(max(CHUNK_BYTES // max(each * k, 1), 1), CHUNK_SIZE)


def check_finite(pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if not all(is_finite(t) for t in piece.block.tensors().values()):
            raise ValueError(
                f"the gradient of {' and '.join(piece.names)} is not finite (NaN or infinite): nothing was "
                "stored; check the data and the weights for such values"
            )
