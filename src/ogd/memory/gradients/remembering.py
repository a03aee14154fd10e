"""A finished task → its rows of G."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from ogd import seeds
from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.gather import check_dependent, gather
from ogd.memory.inputs.examples import Chunk, Drawn
from ogd.memory.inputs.outputs import Chosen
from ogd.memory.model.names import plain_names
from ogd.memory.projection.store import Store
from ogd.memory.ranks.collective import together


@dataclass(frozen=True, eq=False)
class TaskRows:
    """The pieces of a task, its number of rows, and how many of them an example has."""

    pieces: list[Piece]
    rows: int
    each: int

    def added_to(self, store: Store, params: Mapping[str, Tensor]) -> Store:
        return store.grown(self.pieces, self.rows, {name: p.shape for name, p in params.items()}, self.each)


def task_rows(
    chosen: Chosen,
    params: Mapping[str, Tensor],
    examples: Drawn,
    start: int,
    chunk_size: int | None,
    dtype: torch.dtype | None = None,
) -> TaskRows:
    """The rows of a task from `start` on, in the columns of `params`, which have their plain names."""
    pieces, rows = plain_pieces(chosen, params, examples, start, chunk_size, dtype, examples.count)
    check_dependent(bool(pieces))
    return TaskRows(pieces, rows, rows_of_each(rows, examples.seen))


def plain_pieces(
    chosen: Chosen,
    params: Mapping[str, Tensor],
    chunks: Iterable[Chunk],
    start: int,
    chunk_size: int | None,
    dtype: torch.dtype | None = None,
    expected: int | None = None,
) -> tuple[list[Piece], int]:
    """What `gather` finds, under plain names."""
    plain = plain_names(chosen.model)
    paths = {name: p for name, p in chosen.model.named_parameters() if plain[name] in params}
    with _eager():
        pieces, rows = gather(chosen, paths, chunks, start, chunk_size, dtype, expected)
    return [replace(piece, names=tuple(plain[name] for name in piece.names)) for piece in pieces], rows


def rows_of_each(rows: int, examples: int) -> int:
    """How many rows an example has; 1 where they differ in that."""
    return 1 if rows % examples else rows // examples


def _eager() -> AbstractContextManager[object]:
    """Run compiled parts of a model uncompiled: compiled code does not see the hooks on its layers."""
    stance = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    return nullcontext() if stance is None else stance("force_eager")


def seeded(n: int, shared: bool = False) -> Generator:
    """Return a generator that depends on torch's seed and on how much is stored."""
    return seeds.generator(torch_seed(shared), "remember", n)


def torch_seed(shared: bool = False) -> int:
    """Return torch's seed, with several ranks the first one's, within the 63 bits that a file holds."""
    seed = together(torch.initial_seed, "tell its seed")[0] if shared else torch.initial_seed()
    return seed % 2**63
