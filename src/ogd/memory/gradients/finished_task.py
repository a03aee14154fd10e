"""A finished task → the store with its rows of G.

Each of several ranks differentiates its share of the examples. The rows of a task are in the order of the ranks, so G
is the same whether each rank stores all of it or only its own rows.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ogd.memory.blocks.pieces import Piece
from ogd.memory.data.batches import Chunk, length
from ogd.memory.data.distributed_sampling import all_examples, draw_shares, take_examples
from ogd.memory.data.sampling import Sample
from ogd.memory.gradients.gather import check_dependent, fill_missing_rows, gather
from ogd.memory.gradients.outputs import ChosenOutputs
from ogd.memory.model.parameters import plain_names
from ogd.memory.projection.sharding import all_pieces, check_same_store, cut_pieces, divided, sharded_store
from ogd.memory.projection.store import Shapes, Store
from ogd.memory.ranks.collective import gather_results
from ogd.memory.ranks.sharded_parameters import is_sharded, local_parts, whole_parameters

Params = Mapping[str, Tensor]


def store_with_task(
    store: Store,
    chosen: ChosenOutputs,
    params: Params,
    sample: Sample,
    chunk_size: int | None,
    dtype: torch.dtype | None,
) -> Store:
    """Return the store with the rows of another task in the columns of `params`, which have plain names."""
    pieces, rows = _plain_pieces(chosen, params, sample, len(store), chunk_size, dtype, sample.count)
    check_dependent(bool(pieces))
    return store.with_task(pieces, rows, _shapes(params), _rows_per_example(rows, sample.seen))


def store_with_shared_task(
    store: Store,
    chosen: ChosenOutputs,
    params: Params,
    sample: Sample,
    chunk_size: int | None,
    dtype: torch.dtype | None,
    sharded: bool,
) -> Store:
    """Return the store with another task, of which each rank differentiates its share. Collective."""
    drawn, given = draw_shares(sample)
    mine, rank = given[dist.get_rank()], dist.get_rank()
    pieces: list[Piece] = []

    def differentiate() -> tuple[int, Shapes, bool]:
        if not mine:  # fewer examples than ranks
            return 0, _shapes(params), False
        found, n = _plain_pieces(chosen, params, take_examples(drawn, mine), len(store), chunk_size, dtype, len(mine))
        pieces.extend(found)
        return n, _shapes(params), bool(found)

    shares = gather_results(differentiate, "remember its share")
    if any(shapes != _shapes(params) for _, shapes, _ in shares):
        raise ValueError("the ranks hold different models or protect different parameters, but share one memory")
    check_dependent(any(found for *_, found in shares))
    rows = [n for n, *_ in shares]
    pieces = fill_missing_rows(pieces, params, len(store), rows[rank])
    pieces = [replace(piece, start=piece.start + sum(rows[:rank])) for piece in pieces]
    rows_per_example = _rows_per_example(sum(rows), sum(map(len, given)))
    if not sharded:
        device = next(iter(params.values())).device
        return store.with_task(all_pieces(pieces, device), sum(rows), _shapes(params), rows_per_example)
    if not store.sharded:
        check_same_store(store)
    store = sharded_store(store).with_task(pieces, sum(rows), _shapes(params), rows_per_example)
    held = gather_results(lambda: store.shapes, "name its rows")
    store.shapes = {name: shape for known in held for name, shape in known.items()}  # also of rows on other ranks
    return store


def store_with_divided_task(
    store: Store,
    chosen: ChosenOutputs,
    params: Params,
    sample: Sample,
    chunk_size: int | None,
    dtype: torch.dtype | None,
) -> Store:
    """Return the store with this rank's columns of another task, whose examples all ranks differentiate. Collective.

    `params` are the shards: DTensors, by plain names.
    """
    examples = all_examples(sample) if dist.get_world_size() > 1 else list(sample)
    n = sum(map(length, examples))
    pieces, rows = _plain_pieces(chosen, params, examples, len(store), chunk_size, dtype, n)
    check_dependent(bool(pieces))
    pieces = cut_pieces(pieces, params, dtype)
    return divided(store).with_task(pieces, rows, _shapes(local_parts(params)), _rows_per_example(rows, n))


def _plain_pieces(
    chosen: ChosenOutputs,
    params: Params,
    chunks: Iterable[Chunk],
    start: int,
    chunk_size: int | None,
    dtype: torch.dtype | None,
    expected: int | None,
) -> tuple[list[Piece], int]:
    """Return the pieces of `gather` with plain names, and the number of rows."""
    plain = plain_names(chosen.model)
    named = whole_parameters(chosen.model) if is_sharded(chosen.model) else dict(chosen.model.named_parameters())
    paths = {name: p for name, p in named.items() if plain[name] in params}
    with _eager():
        pieces, rows = gather(chosen, paths, chunks, start, chunk_size, dtype, expected)
    return [replace(piece, names=tuple(plain[name] for name in piece.names)) for piece in pieces], rows


def _shapes(params: Params) -> Shapes:
    return {name: p.shape for name, p in params.items()}


def _rows_per_example(rows: int, examples: int) -> int:
    """Return the number of rows per example; 1 if it differs between examples."""
    return 1 if rows % examples else rows // examples


def _eager() -> AbstractContextManager[object]:
    """Run compiled parts of a model uncompiled, because compiled code ignores the hooks on its layers."""
    stance = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    return nullcontext() if stance is None else stance("force_eager")
