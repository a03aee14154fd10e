"""A finished task → its rows of G."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from ogd.memory.examples import Drawn
from ogd.memory.gradients import gather
from ogd.memory.names import plain_names
from ogd.memory.outputs import Chosen
from ogd.memory.store import Piece, Store


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
    count: int | None = None,
) -> TaskRows:
    """The rows of a task from `start` on, in the columns of `params`, which have their plain names."""
    plain = plain_names(chosen.model)
    paths = {name: p for name, p in chosen.model.named_parameters() if plain[name] in params}
    with _eager():
        pieces, rows = gather(chosen, paths, examples, start, chunk_size, dtype, count)
    pieces = [replace(piece, names=tuple(plain[name] for name in piece.names)) for piece in pieces]
    return TaskRows(pieces, rows, 1 if rows % examples.seen else rows // examples.seen)


def _eager() -> AbstractContextManager[object]:
    """Compiled parts of a model run as they were written: compiled code does not see the hooks on its layers."""
    stance = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    return nullcontext() if stance is None else stance("force_eager")


def seeded(n: int) -> Generator:
    """A generator that depends on torch's seed and on how much is stored."""
    return Generator().manual_seed((torch.initial_seed() + n) % 2**63)
