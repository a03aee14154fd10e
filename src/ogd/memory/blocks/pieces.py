"""Pieces of G: a block with the names of its parameters and the number of its first row."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor

from ogd.checks import whole_number
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.convolved import Convolved
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.sparse import Sparse

KINDS: dict[str, type[Block]] = {kind.kind: kind for kind in (Dense, Factored, Convolved, Sparse)}
LARGE = 2**28  # bytes up to which blocks are concatenated


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows start to stop of G in the columns of the named parameters. G is zero where it has no piece."""

    names: tuple[str, ...]
    block: Block
    start: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.block.n

    def only(self, names: Collection[str]) -> Iterator["Piece"]:
        """Yield the pieces of some of the parameters only."""
        if all(name in names for name in self.names):
            yield self
            return
        for name, block in zip(self.names, self.block.split(), strict=True):
            if name in names:
                yield Piece((name,), block, self.start)

    def since(self, row: int) -> "Piece":
        """Return the rows of this piece from row `row` of G onwards."""
        return self.between(row, self.stop)

    def between(self, start: int, stop: int) -> "Piece":
        """Return the rows of this piece from row `start` to `stop` of G."""
        last = min(max(stop - self.start, 0), self.block.n)
        first = min(max(start - self.start, 0), last)
        return replace(self, block=self.block[first:last], start=self.start + first)

    def gram(self, other: "Piece") -> Tensor | None:
        """Return the inner products of the rows, (..., n, m); None if the pieces share no parameter."""
        if self.names == other.names:
            return self.block.gram(other.block)
        total = None
        for name in set(self.names) & set(other.names):
            (ours,), (theirs,) = self.only({name}), other.only({name})
            overlap = ours.block.gram(theirs.block)
            total = overlap if total is None else total + overlap
        return total


def append_pieces(pieces: Iterable[Piece], new: Iterable[Piece]) -> list[Piece]:
    """Append new pieces, and concatenate each to the last piece of the same parameters if its rows come next.

    Each block is copied at most once. Blocks of a single model that would exceed `LARGE` bytes stay separate, because
    the copy would need as much memory again.
    """
    groups: list[list[Piece]] = []
    sizes: list[int] = []  # bytes of each group
    last: dict[tuple[str, ...], int] = {}
    for piece in chain(pieces, new):
        i, size = last.get(piece.names), piece.block.nbytes
        if i is not None and _continues(groups[i], piece, sizes[i] + size):
            groups[i].append(piece)
            sizes[i] += size
        else:
            last[piece.names] = len(groups)
            groups.append([piece])
            sizes.append(size)
    result = []
    groups.reverse()
    while groups:  # one by one, so that the memory of concatenated blocks becomes free
        first, *more = groups.pop()
        result.append(replace(first, block=first.block.concatenate(*(p.block for p in more))) if more else first)
    return result


def _continues(group: list[Piece], piece: Piece, size: int) -> bool:
    small = size <= LARGE or bool(piece.block.lead)
    return small and group[-1].stop == piece.start and group[0].block.fits(piece.block)


def piece_state(i: int, piece: Piece) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return piece number i as JSON values and tensors."""
    entry = {"names": list(piece.names), "start": piece.start, **piece.block.to_state()}
    return entry, {f"{i}.{name}": t.detach() for name, t in piece.block.tensors().items()}


def piece_from_state(
    i: int, entry: Mapping[str, Any], tensors: dict[str, Tensor], params: Mapping[str, Tensor]
) -> Piece:
    """Make piece number i of a model's parameters, and remove its tensors from `tensors`.

    A ValueError names the piece if its state does not fit the parameters or itself.
    """
    names = tuple(map(str, entry["names"]))
    where = f"piece {i} ({', '.join(names)})"
    if not names:
        raise ValueError(f"piece {i}: its names are empty, but a piece has the names of one or two parameters")
    kind = KINDS[entry["kind"]]
    own = {name: tensors.pop(f"{i}.{name}") for name in kind.row_axes}
    try:
        block = kind.from_state(entry, own, [params[name].shape for name in names])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not block.n:
        raise ValueError(f"{where}: it holds no rows")
    return Piece(names, block.to(params[names[0]].device, block.dtype), whole_number(entry["start"]))
