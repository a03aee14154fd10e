"""Fewer rows of G: the store that would be there if only some rows had ever been remembered.

Where the store is sharded all of this is collective: bytes and names are those of all ranks.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator

from ogd.memory.blocks.block import Block
from ogd.memory.blocks.pieces import Piece, appended
from ogd.memory.budget import Budget, BudgetExceeded
from ogd.memory.projection.store import Store
from ogd.memory.ranks.collective import together
from ogd.memory.shares import equal_shares


def without(store: Store, task: int) -> Store:
    """The store without a task."""
    return _kept(store, [[] if t == task else list(range(rows)) for t, rows in enumerate(store.tasks)])


def shortened(store: Store, most: Sequence[int]) -> Store:
    """The store with at most so many rows of each task, the first ones; an example keeps all of its rows or none."""
    pairs = zip(store.tasks, store.each, most, strict=False)
    return _kept(store, [range(min(rows, n // each * each)) for rows, each, n in pairs])


def within(budget: Budget, when_full: str, store: Store, generator: Generator) -> Store:
    """The store if it is within the budget; else an error, or with "shrink" fewer examples of each task.

    Tasks keep as equal shares of the budget as can be, each a uniform draw of its examples.
    """
    nbytes = _nbytes(store)
    if when_full == "raise" or budget.holds(len(store), nbytes):
        budget.check(len(store), nbytes)
        return store
    examples = [rows // each for rows, each in zip(store.tasks, store.each, strict=True)]
    most, weights = budget.nbytes or 0, _bytes_per_example(store, examples)
    if budget.directions is not None:
        most, weights = budget.directions, list(store.each)
    order = [torch.randperm(n, generator=generator) for n in examples]
    size = most
    while True:
        shares = equal_shares(examples, size, weights)
        if not all(shares):
            raise BudgetExceeded(
                f"the budget of {budget} is too small for an example of each of {len(examples)} tasks: nothing was "
                "stored; raise budget=, or forget a task first: memory.forget(0)"
            )
        drawn = [o[:share].sort().values for o, share in zip(order, shares, strict=True)]
        smaller = _kept(store, [_rows(d, each) for d, each in zip(drawn, store.each, strict=True)])
        nbytes = _nbytes(smaller)
        if budget.holds(len(smaller), nbytes):
            return smaller
        size = size * most // nbytes  # examples of one task differ in bytes: aim lower


def _rows(examples: torch.Tensor, each: int) -> list[int]:
    found: list[int] = (examples.unsqueeze(1) * each + torch.arange(each)).flatten().tolist()
    return found


def _nbytes(store: Store) -> int:
    return sum(together(lambda: store.nbytes, "count its bytes")) if store.sharded else store.nbytes


def _bytes_per_example(store: Store, examples: Sequence[int]) -> list[int]:
    held = together(lambda: _bytes_per_task(store), "count its bytes") if store.sharded else [_bytes_per_task(store)]
    return [-int(-sum(nbytes) // n) for *nbytes, n in zip(*held, examples, strict=True)]


def _bytes_per_task(store: Store) -> list[float]:
    found, start = [], 0
    for rows in store.tasks:
        inside = [(p, min(p.stop, start + rows) - max(p.start, start)) for p in store.pieces]
        found.append(sum(p.block.nbytes * max(both, 0) / p.block.n for p, both in inside))
        start += rows
    return found


def _kept(store: Store, tasks: Sequence[Sequence[int]]) -> Store:
    """The store of some rows of each task; a task that keeps no row is dropped."""
    starts = [sum(store.tasks[:t]) for t in range(len(store.tasks))]
    rows = torch.tensor([start + row for start, kept in zip(starts, tasks, strict=True) for row in kept]).long()
    pieces = appended((), [piece for old in store.pieces for piece in _of_piece(old, rows)])
    names = {name for piece in pieces for name in piece.names}
    if store.sharded:
        names = set().union(*together(lambda: names, "name its rows"))
    smaller = Store(
        pieces,
        [len(kept) for kept in tasks if kept],
        {name: shape for name, shape in store.shapes.items() if name in names},
        [each for each, kept in zip(store.each, tasks, strict=True) if kept],
        store.sharded,
    )
    for key, K in store.grams.items():
        computed = rows[rows < K.shape[-1]].to(K.device)  # K may lack the last rows
        if key & names:
            smaller.grams[key & names] = K[..., computed, :][..., computed]
    return smaller


def _of_piece(piece: Piece, rows: torch.Tensor) -> list[Piece]:
    mine: list[int] = (rows[(rows >= piece.start) & (rows < piece.stop)] - piece.start).tolist()
    start = int((rows < piece.start).sum())
    return [replace(piece, block=_chosen(piece.block, mine), start=start)] if mine else []


def _chosen(block: Block, rows: Sequence[int]) -> Block:
    """The rows of a block, copied, so that those which are left out take no memory."""
    cuts = [0, *(i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1), len(rows)]
    return block[0:0].joined(*(block[rows[i] : rows[j - 1] + 1] for i, j in itertools.pairwise(cuts)))
