"""All of G: pieces, each a block of some parameters and some rows; and K = G Gᵀ, extended by its new rows."""

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

import torch
from torch import Tensor

from ogd.long_work import announce
from ogd.memory.blocks.pieces import Piece, appended
from ogd.memory.projection.pseudo_inverse import cutoff, extend, rank, triangular_whitener
from ogd.memory.ranks.collective import streamed, summed

Shapes = Mapping[str, torch.Size]


def extended_gram(K: Tensor, pieces: Collection[Piece], n: int) -> Tensor:
    """K for all n rows of G from the K of the first ones: only the new rows are computed, and half of their square."""
    old = K.shape[-1]
    rows = K.new_zeros(*K.shape[:-2], n - old, n)  # (..., new, n)
    before = [piece.between(0, old) for piece in pieces if piece.start < old]
    new = [piece.since(old) for piece in pieces if piece.stop > old]
    for i, piece in enumerate(new):
        mine = slice(piece.start - old, piece.stop - old)
        for other in before + new[i:]:
            overlap = piece.gram(other)
            if overlap is not None:
                rows[..., mine, other.start : other.stop] += overlap.to(K.device)
                if other.start >= old and other is not piece:
                    rows[..., other.start - old : other.stop - old, piece.start : piece.stop] += overlap.mT.to(K.device)
    return extend(K, rows[..., :old], rows[..., old:])


def sharded_gram(K: Tensor, pieces: Collection[Piece], n: int) -> Tensor:
    """The same where each rank has some rows: it compares the new rows of all ranks with its own. Collective."""
    old = K.shape[-1]
    rows = K.new_zeros(n - old, n)
    for new in streamed([piece.since(old) for piece in pieces if piece.stop > old], K.device):
        for other in pieces:
            overlap = new.gram(other)
            if overlap is not None:
                rows[new.start - old : new.stop - old, other.start : other.stop] += overlap.to(K.device)
    (rows,) = summed(rows)
    return extend(K, rows[:, :old], rows[:, old:])


class Store:
    """The pieces of G, task by task, with the shapes of their parameters and K for the columns asked for.

    For a stack of runs the pieces, the shapes and K begin with the same axes `...`; a single model has none.
    Sharded, the pieces are this rank's rows of G only; tasks, shapes and K are those of all ranks.
    """

    def __init__(
        self,
        pieces: Iterable[Piece] = (),
        tasks: Iterable[int] = (),
        shapes: Shapes | None = None,
        each: Iterable[int] | None = None,
        sharded: bool = False,
    ):
        self.pieces, self.sharded = list(pieces), sharded
        self.tasks = tuple(tasks)  # rows of each task
        self.each = tuple([1] * len(self.tasks) if each is None else each)  # of these, rows of each example
        self.shapes = dict(shapes or {})
        self.grams: dict[frozenset[str], Tensor] = {}
        self.whiteners: dict[frozenset[str], Tensor] = {}  # of the K that are well conditioned
        self.singular: set[frozenset[str]] = set()  # the others

    def __len__(self) -> int:
        return sum(self.tasks)

    @property
    def lead(self) -> torch.Size:
        return self.pieces[0].block.lead if self.pieces else torch.Size()

    @property
    def nbytes(self) -> int:
        return sum(piece.block.nbytes for piece in self.pieces)

    @property
    def derived_nbytes(self) -> int:
        """Bytes of K and of its W."""
        return sum(t.nbytes for kind in (self.grams, self.whiteners) for t in kind.values())

    @cached_property  # a store's rows never change, and this takes O(n³)
    def rank(self) -> int:
        """The number of independent rows; in a stack that of the run which has most."""
        if len(self) and self.triangular_whitener(self.shapes) is not None:
            return len(self)
        return int(rank(self.gram(self.shapes), cutoff(len(self), torch.float64)).max())

    def triangular_whitener(self, names: Collection[str]) -> Tensor | None:
        """W of K where no cut-off would change K⁺, extended from fewer rows; None for others and for stacks."""
        key, K = frozenset(names), self.gram(names)
        if self.lead or not len(self) or key in self.singular:
            return None
        W = self.whiteners.pop(key, None)
        if W is None or len(W) < len(self):
            announce(f"K⁺ of {len(self):,} directions", 2 * len(self) ** 3 / 3e9, 20 * K.numel())
            W = triangular_whitener(K, W)
            if W is None:
                self.singular.add(key)
                return None
        self.whiteners[key] = W
        return W

    def grown(self, new: Iterable[Piece], rows: int, shapes: Shapes, each: int = 1) -> "Store":
        """This store and another task, with `each` rows per example; K of the old rows is kept."""
        self.check_shapes(shapes)
        pieces = appended(self.pieces, new)
        stored = {name: shapes[name] for piece in pieces for name in piece.names if name in shapes}
        store = Store(pieces, (*self.tasks, rows), self.shapes | stored, (*self.each, each), self.sharded)
        store.grams, store.whiteners = dict(self.grams), dict(self.whiteners)
        store.singular = set(self.singular)
        return store

    def only(self, names: Collection[str]) -> list[Piece]:
        return [part for piece in self.pieces for part in piece.only(names)]

    def gram(self, names: Collection[str]) -> Tensor:
        """K (..., n, n) of the columns of some parameters, brought up to date."""
        key = frozenset(names)
        pieces = self.only(key)
        device = pieces[0].block.device if pieces else None
        nothing = torch.zeros(*self.lead, 0, 0, dtype=torch.float64, device=device)
        if not len(self):  # not kept: the leading axes come with the first task
            return nothing
        if key not in self.grams:
            self.grams[key] = self._begun(key, nothing)
        K = self.grams[key]
        if K.shape[-1] < len(self):
            new = len(self) - K.shape[-1]
            work = sum(piece.block.gram_cost(new, len(self)) for piece in pieces)
            announce(f"K of {len(self):,} directions", work / 1e9, 8 * len(self) ** 2)
            extended = sharded_gram if self.sharded else extended_gram
            K = self.grams[key] = extended(K, pieces, len(self))
        return K

    def _begun(self, key: frozenset[str], nothing: Tensor) -> Tensor:
        """A K to extend: one of fewer columns serves as well if the others were zero in its rows."""
        for known, K in self.grams.items():
            if self.sharded:  # what the others' rows hold is not known here
                break
            if known < key and all(piece.start >= K.shape[-1] for piece in self.only(key - known)):
                return self.grams.pop(known)
        return nothing

    def check_shapes(self, shapes: Shapes) -> None:
        """Raise if a parameter has another shape than its stored gradients."""
        for name, shape in shapes.items():
            if self.shapes.get(name, shape) != shape:
                raise shape_error(name, shapes, self.shapes)


def shape_error(name: str, shapes: Shapes, stored: Shapes) -> ValueError:
    """Say that a parameter has another shape than its stored gradients, and what to do."""
    return ValueError(
        f"parameter {name!r} has shape {tuple(shapes[name])}, its stored gradients {tuple(stored[name])}: only the "
        "outputs of a layer may grow (its first axis); give a different layer a new name, or forget the tasks and "
        "remember them again"
    )
