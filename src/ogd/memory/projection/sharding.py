"""G on several ranks of `torch.distributed`, either whole on each rank or divided among them.

whole      each rank stores all of G
sharded    rank r stores its rows G_r and all of K:    G u = [G_r u]_r,    Gᵀ c = Σ_r G_rᵀ c_r
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from ogd.memory.blocks.pieces import Piece, append_pieces
from ogd.memory.projection.store import Store
from ogd.memory.ranks.agreement import check_same
from ogd.memory.ranks.collective import clone_tensors, stream_items


def sharded_store(store: Store) -> Store:
    """Return rows ⌊n r / N⌋ to ⌊n (r + 1) / N⌋ of a store of n rows that every rank holds whole, on rank r of N."""
    if store.sharded:
        return store
    n, r, N = len(store), dist.get_rank(), dist.get_world_size()
    parts = [piece.between(n * r // N, n * (r + 1) // N) for piece in store.pieces]
    own = [clone_tensors(piece) for piece in parts if piece.block.n]
    shard = Store(own, store.tasks, store.shapes, store.rows_per_example, True)
    shard.grams = dict(store.grams)
    return shard


def whole_store(store: Store) -> Store:
    """Return the store with the rows of all ranks. Collective if sharded."""
    if not store.sharded:
        return store
    device = store.pieces[0].block.device if store.pieces else torch.device("cpu")
    return Store(all_pieces(store.pieces, device), store.tasks, store.shapes, store.rows_per_example)


def all_pieces(pieces: Iterable[Piece], device: torch.device) -> list[Piece]:
    """Return the pieces of all ranks in the order of their rows. Collective."""
    return append_pieces((), sorted(stream_items(pieces, device), key=lambda piece: piece.start))


def check_same_store(store: Store) -> None:
    """Raise on every rank unless all ranks hold the same store. Collective."""
    check_same(lambda: (store.fingerprint, f"{len(store):,} directions in {store.nbytes:,} bytes"))
