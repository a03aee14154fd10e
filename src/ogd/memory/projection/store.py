"""The store of all pieces of G, and of K = G Gᵀ in the columns of some parameters."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ogd.long_work import warn_of_work
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.pieces import Piece, append_pieces
from ogd.memory.projection.gram_matrix import extend_gram, sharded_gram, summed_gram
from ogd.memory.projection.pseudo_inverse import Cholesky, Softness, cholesky, cutoff, rank
from ogd.memory.ranks.agreement import bytes_of, digest
from ogd.memory.ranks.collective import gather_results

Shapes = Mapping[str, torch.Size]


class Store:
    """The pieces of G, task by task, with the shapes of their parameters and K for sets of parameters.

    For a stack of runs the pieces, the shapes and K begin with the same axes `...`; a single model has none.
    If sharded, the pieces are only this rank's rows of G, or columns; then shapes are those of its shards. Tasks and K
    are those of all ranks.
    """

    unit: ClassVar[str] = "directions"

    def __init__(
        self,
        pieces: Iterable[Piece] = (),
        tasks: Iterable[int] = (),
        shapes: Shapes | None = None,
        rows_per_example: Iterable[int] | None = None,
        sharded: Literal["rows", "columns"] | None = None,
    ):
        self.pieces, self.sharded = list(pieces), sharded
        self.tasks = tuple(tasks)  # rows of each task
        self.rows_per_example = tuple([1] * len(self.tasks) if rows_per_example is None else rows_per_example)
        self.shapes = dict(shapes or {})
        self.grams: dict[frozenset[str], Tensor] = {}
        self.cholesky_factors: dict[tuple[frozenset[str], Softness], Cholesky] = {}  # of each K and softness

    def __len__(self) -> int:
        return sum(self.tasks)

    @property
    def lead(self) -> torch.Size:
        return self.pieces[0].block.lead if self.pieces else torch.Size()

    @property
    def nbytes(self) -> int:
        return sum(piece.block.nbytes for piece in self.pieces)

    @property
    def total_nbytes(self) -> int:
        """The bytes of the rows of all ranks. Collective if sharded."""
        return sum(gather_results(lambda: self.nbytes, "count its bytes")) if self.sharded else self.nbytes

    @property
    def derived_nbytes(self) -> int:
        """The bytes of K and L."""
        return sum(one.nbytes for kind in (self.grams, self.cholesky_factors) for one in kind.values())

    @property
    def fingerprint(self) -> bytes:
        """A hash of all stored values, or for a sharded store of those that its ranks have in common.

        Examples:
            >>> Store().fingerprint == Store().fingerprint, Store().fingerprint == Store(tasks=[1]).fingerprint
            (True, False)
        """
        cut = self.sharded == "columns"  # shapes differ between ranks
        shapes = sorted((name, () if cut else tuple(shape)) for name, shape in self.shapes.items())
        parts = [repr((self.tasks, self.rows_per_example, shapes, self.sharded)).encode()]
        for piece in () if self.sharded else self.pieces:
            parts.append(repr((piece.names, piece.start)).encode())
            parts += [digest(bytes_of(t)) for _, t in sorted(piece.block.tensors().items())]
        return digest(b"".join(parts))

    @cached_property  # a store's rows never change, and this takes O(n³)
    def rank(self) -> int:
        """The number of independent rows, in a stack the largest number of all runs."""
        if len(self) and self.cholesky(self.shapes) is not None:
            return len(self)
        return int(rank(self.gram(self.shapes), cutoff(len(self), torch.float64)).max())

    def cholesky(self, names: Collection[str], softness: Softness = 0.0) -> Cholesky | None:
        """Return L, extended from that of fewer rows; None if a cut-off might change K⁺, or for a stack if μ = 0."""
        key, K = (frozenset(names), softness), self.gram(names)
        if not len(self) or (self.lead and not softness):
            return None
        known = self.cholesky_factors.pop(key, None)
        n, m = len(self), 0 if known is None else known.scale.shape[-1]
        if m < n:
            warn_of_work(f"K⁺ of {n:,} directions", (n**3 - m**3) / 3e9, 20 * K.numel())
            known = cholesky(K, known, softness)
        if known is not None:
            self.cholesky_factors[key] = known
        return known

    def with_task(self, new: Iterable[Piece], rows: int, shapes: Shapes, rows_per_example: int = 1) -> "Store":
        """Return the store with another task, keeping K of the old rows."""
        self.check_shapes(shapes)
        pieces = append_pieces(self.pieces, new)
        stored = {name: shapes[name] for piece in pieces for name in piece.names if name in shapes}
        store = Store(
            pieces, (*self.tasks, rows), self.shapes | stored, (*self.rows_per_example, rows_per_example), self.sharded
        )
        store.grams, store.cholesky_factors = dict(self.grams), dict(self.cholesky_factors)
        return store

    @property
    def examples_of_tasks(self) -> list[int]:
        """The number of examples of each task."""
        return [rows // each for rows, each in zip(self.tasks, self.rows_per_example, strict=True)]

    def size_per_example(self, *, in_bytes: bool) -> list[int]:
        """Return how many rows, or bytes, an example of each task takes. Collective if sharded."""
        if not in_bytes:
            return list(self.rows_per_example)
        mine = self._bytes_of_tasks()
        held = gather_results(lambda: mine, "count its bytes") if self.sharded else [mine]
        return [-int(-sum(nbytes) // n) for *nbytes, n in zip(*held, self.examples_of_tasks, strict=True)]

    def _bytes_of_tasks(self) -> list[float]:
        found, start = [], 0
        for rows in self.tasks:
            inside = [(p, min(p.stop, start + rows) - max(p.start, start)) for p in self.pieces]
            found.append(sum(p.block.nbytes * max(both, 0) / p.block.n for p, both in inside))
            start += rows
        return found

    def with_examples(self, tasks: Sequence[Tensor]) -> "Store":
        """Return the store with only some examples of each task, by their ascending numbers. Collective if sharded."""
        pairs = zip(tasks, self.rows_per_example, strict=True)
        return self.with_rows([_rows_of(examples, each) for examples, each in pairs])

    def without_task(self, task: int) -> "Store":
        """Return the store without a task. Collective if sharded."""
        return self.with_rows([[] if t == task else range(rows) for t, rows in enumerate(self.tasks)])

    def with_rows(self, tasks: Sequence[Sequence[int]]) -> "Store":
        """Return the store with only these rows of each task, without tasks that keep no row. Collective if sharded.

        It is the same as if no other rows had been remembered.
        """
        starts = [sum(self.tasks[:t]) for t in range(len(self.tasks))]
        rows = torch.tensor([start + row for start, kept in zip(starts, tasks, strict=True) for row in kept]).long()
        pieces = append_pieces((), [piece for old in self.pieces for piece in _rows_of_piece(old, rows)])
        names = {name for piece in pieces for name in piece.names}
        if self.sharded:
            names = set().union(*gather_results(lambda: names, "name its rows"))
        smaller = Store(
            pieces,
            [len(kept) for kept in tasks if len(kept)],
            {name: shape for name, shape in self.shapes.items() if name in names},
            [each for each, kept in zip(self.rows_per_example, tasks, strict=True) if len(kept)],
            self.sharded,
        )
        for key, K in self.grams.items():
            computed = rows[rows < K.shape[-1]].to(K.device)  # K may lack the last rows
            if key & names:
                smaller.grams[key & names] = K[..., computed, :][..., computed]
        return smaller

    def only(self, names: Collection[str]) -> list[Piece]:
        return [part for piece in self.pieces for part in piece.only(names)]

    def gram(self, names: Collection[str]) -> Tensor:
        """Return K (..., n, n) of the columns of some parameters, extended by the rows that it lacks."""
        key = frozenset(names)
        pieces = self.only(key)
        device = pieces[0].block.device if pieces else None
        nothing = torch.zeros(*self.lead, 0, 0, dtype=torch.float64, device=device)
        if not len(self):  # not cached, because the leading axes are only known with the first task
            return nothing
        if key not in self.grams:
            self.grams[key] = self._initial_gram(key, nothing)
        K = self.grams[key]
        if K.shape[-1] < len(self):
            new = len(self) - K.shape[-1]
            work = sum(piece.block.gram_cost(new, len(self)) for piece in pieces)
            warn_of_work(f"K of {len(self):,} directions", work / 1e9, 8 * len(self) ** 2)
            extended = {None: extend_gram, "rows": sharded_gram, "columns": summed_gram}[self.sharded]
            K = self.grams[key] = extended(K, pieces, len(self))
        return K

    def _initial_gram(self, key: frozenset[str], nothing: Tensor) -> Tensor:
        """Return a K to extend, which may be that of fewer parameters if the others are zero in its rows."""
        for known, K in self.grams.items():
            if self.sharded:  # other ranks may have such rows
                break
            if known < key and all(piece.start >= K.shape[-1] for piece in self.only(key - known)):
                return self.grams.pop(known)
        return nothing

    def check_shapes(self, shapes: Shapes) -> None:
        """Raise a ValueError if a parameter and its stored gradients have different shapes."""
        for name, shape in shapes.items():
            if self.shapes.get(name, shape) != shape:
                raise shape_error(name, shapes, self.shapes)


def shape_error(name: str, shapes: Shapes, stored: Shapes) -> ValueError:
    """Return the error for a parameter and stored gradients of different shapes."""
    return ValueError(
        f"parameter {name!r} has shape {tuple(shapes[name])}, its stored gradients {tuple(stored[name])}: only the "
        "outputs of a layer may grow (its first axis); give a different layer a new name, or forget the tasks and "
        "remember them again"
    )


def _rows_of(examples: Tensor, each: int) -> list[int]:
    rows: list[int] = (examples.unsqueeze(1) * each + torch.arange(each)).flatten().tolist()
    return rows


def _rows_of_piece(piece: Piece, rows: Tensor) -> list[Piece]:
    mine: list[int] = (rows[(rows >= piece.start) & (rows < piece.stop)] - piece.start).tolist()
    start = int((rows < piece.start).sum())
    return [replace(piece, block=_rows_of_block(piece.block, mine), start=start)] if mine else []


def _rows_of_block(block: Block, rows: Sequence[int]) -> Block:
    """Copy rows of a block, so that the memory of the other rows becomes free."""
    cuts = [0, *(i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1), len(rows)]
    return block[0:0].concatenate(*(block[rows[i] : rows[j - 1] + 1] for i, j in itertools.pairwise(cuts)))
