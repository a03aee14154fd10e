"""G on several ranks of `torch.distributed`, either whole on each rank or divided among them.

whole              each rank stores all of G
sharded: rows      rank r stores its rows G_r and all of K:       G u = [G_r u]_r,     Gᵀ c = Σ_r G_rᵀ c_r
sharded: columns   rank r stores the columns of its parameters:   G u = Σ_r G_r u_r,   Gᵀ c = [G_rᵀ c]_r

By columns it is where FSDP2 divides the parameters. Then a correction needs no exchange.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ogd.memory.blocks.block import Block
from ogd.memory.blocks.cutting import Cut, can_cut, cut_block, whole_block
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece, append_pieces
from ogd.memory.projection.store import Store
from ogd.memory.ranks.agreement import check_same
from ogd.memory.ranks.collective import clone_tensors, gather_results, stream_items
from ogd.memory.ranks.sharded_parameters import cuts_of, local


def sharded_store(store: Store) -> Store:
    """Return rows ⌊n r / N⌋ to ⌊n (r + 1) / N⌋ of a store of n rows that every rank holds whole, on rank r of N."""
    if store.sharded == "rows":
        return store
    n, r, N = len(store), dist.get_rank(), dist.get_world_size()
    parts = [piece.between(n * r // N, n * (r + 1) // N) for piece in store.pieces]
    own = [clone_tensors(piece) for piece in parts if piece.block.n]
    shard = Store(own, store.tasks, store.shapes, store.rows_per_example, "rows")
    shard.grams = dict(store.grams)
    return shard


def divided(store: Store) -> Store:
    """Return an empty store as one that is divided by columns; raise if it holds rows that are not."""
    if store.sharded == "columns":
        return store
    if len(store):
        raise ValueError(
            "fully_shard was applied after remember: apply it first; or save the memory before, and load it after"
        )
    return Store(sharded="columns")


def divided_store(store: Store, params: Mapping[str, Tensor]) -> Store:
    """Return this rank's columns of a store that every rank holds whole, for shards by name."""
    shapes = {name: local(params[name]).shape for name in store.shapes}
    return Store(cut_pieces(store.pieces, params), store.tasks, shapes, store.rows_per_example, "columns")


def cut_pieces(pieces: Iterable[Piece], params: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> list[Piece]:
    """Return this rank's columns of whole pieces, in `dtype` or the type of their parameters."""
    return [part for piece in pieces for part in _cut_piece(piece, params, dtype)]


def _cut_piece(piece: Piece, params: Mapping[str, Tensor], dtype: torch.dtype | None) -> list[Piece]:
    whole, sizes = piece.block, [params[name].numel() for name in piece.names]
    cuts = {tuple(_cuts(params[name])) for name in piece.names}
    every, cut = (each := next(iter(cuts))), each[dist.get_rank()]
    if len(cuts) == 1 and can_cut(whole, every) and _stays_smaller(whole, sum(sizes), every[0]):
        block = cut_block(whole, cut)
    elif len(sizes) > 1:
        return [part for name in piece.names for one in piece.only({name}) for part in _cut_piece(one, params, dtype)]
    else:
        slice_size = sizes[0] // cut.size
        block = Dense(whole.columns(cut.start * slice_size, cut.stop * slice_size).to(whole.dtype))
    return [replace(piece, block=block.to(block.device, dtype or params[piece.names[0]].dtype))]


def _stays_smaller(block: Block, size: int, largest: Cut) -> bool:
    """Return whether the largest part of a block takes no more bytes in its own form than dense."""
    dense = block.n * size // largest.size * (largest.stop - largest.start) * block.dtype.itemsize
    return isinstance(block, Dense) or cut_block(block[0:1], largest).nbytes * block.n <= dense


def _cuts(p: Tensor) -> list[Cut]:
    return [Cut(start, stop, p.shape[0]) for start, stop in cuts_of(p)]


def whole_store(store: Store, params: Mapping[str, Tensor]) -> Store:
    """Return the store with the rows, or columns, of all ranks. Collective if sharded."""
    if not store.sharded:
        return store
    device = store.pieces[0].block.device if store.pieces else torch.device("cpu")
    if store.sharded == "rows":
        return Store(all_pieces(store.pieces, device), store.tasks, store.shapes, store.rows_per_example)
    own = [(piece.start, piece.stop) for piece in store.pieces]
    ends = {end for theirs in gather_results(lambda: own, "name its rows") for pair in theirs for end in pair}
    cut = list(itertools.pairwise(sorted(ends)))  # large pieces may begin at other rows on other ranks
    mine = [part for piece in store.pieces for rows in cut if (part := piece.between(*rows)).block.n]
    parts = sorted(stream_items(mine, device), key=lambda piece: (piece.start, piece.names))
    N = dist.get_world_size()
    pieces = [
        replace(parts[i], block=whole_block([one.block for one in parts[i : i + N]], _cuts(params[parts[i].names[0]])))
        for i in range(0, len(parts), N)
    ]
    pieces = append_pieces((), pieces)
    return Store(pieces, store.tasks, {name: params[name].shape for name in store.shapes}, store.rows_per_example)


def all_pieces(pieces: Iterable[Piece], device: torch.device) -> list[Piece]:
    """Return the pieces of all ranks in the order of their rows. Collective."""
    return append_pieces((), sorted(stream_items(pieces, device), key=lambda piece: piece.start))


def check_same_store(store: Store) -> None:
    """Raise on every rank unless all ranks hold the same store. Collective."""
    check_same(lambda: (store.fingerprint, f"{len(store):,} directions in {store.nbytes:,} bytes"))
