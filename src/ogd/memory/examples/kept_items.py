"""Keep items of the user's data sets: trees of tensors, arrays, numbers and texts, or objects such as a graph.

Tensors and arrays are packed without loss. Other objects are copied, when they come in and whenever they are drawn, so
that nothing that happens to a batch changes what is stored.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

from ogd.memory.data.batches import TensorSlot
from ogd.memory.data.distributed_sampling import shares
from ogd.memory.data.items import Collate, bytes_in, nbytes_of
from ogd.memory.examples.packing import Packed, pack
from ogd.memory.ranks.agreement import digest
from ogd.memory.ranks.collective import gather_results


@dataclass(frozen=True)
class ArraySlot(TensorSlot):
    """The place of a NumPy array in an item."""


@dataclass(frozen=True, eq=False)
class Item:
    """An item with its tensors packed, and what was measured when it was remembered."""

    structure: Any  # the item with a slot for each tensor and array
    tensors: tuple[Packed, ...]  # one row each
    z: Tensor | None = None  # its outputs, if the memory keeps any
    loss: float = 0.0  # the mean loss of the items that were measured with it

    @classmethod
    def of(cls, item: Any) -> "Item":
        """Return a packed copy of an item."""
        tensors: list[Packed] = []

        def place(leaf: Any) -> Any:
            if type(leaf) in (Tensor, nn.Parameter) and leaf.layout is torch.strided:
                tensors.append(pack(leaf[None]))
                return TensorSlot(len(tensors) - 1)
            if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biuf" and leaf.dtype.itemsize <= 8:
                array = np.array(leaf, dtype=leaf.dtype.newbyteorder("="))  # torch knows only the machine's order
                tensors.append(pack(torch.from_numpy(array)[None]))
                return ArraySlot(len(tensors) - 1)
            return _copy(leaf)

        return cls(pytree.tree_map(place, item), tuple(tensors))

    def unpack(self) -> Any:
        """Return a new item that equals the one that was kept."""
        return pytree.tree_map(self._value, self.structure)

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the item and its outputs."""
        tensors, slots = sum(t.nbytes for t in self.tensors), 8 * len(self.tensors)  # a slot's number takes 8 bytes
        return tensors + nbytes_of(self.structure) - slots + (0 if self.z is None else self.z.nbytes)

    @cached_property
    def fingerprint(self) -> bytes:
        """A hash of the item, without its outputs and loss, which ranks may round differently."""
        return digest(bytes_in(([packed[:] for packed in self.tensors], self.structure)))

    def cpu(self) -> "Item":
        return replace(self, tensors=tuple(packed.to(torch.device("cpu")) for packed in self.tensors))

    def _value(self, leaf: Any) -> Any:
        if not isinstance(leaf, TensorSlot):
            return _copy(leaf)
        t = self.tensors[leaf.number][:][0].clone()
        return t.numpy()[()] if isinstance(leaf, ArraySlot) else t


@dataclass(frozen=True, eq=False)
class Items:
    """The items of all tasks, in the order of the tasks."""

    items: tuple[Item, ...] = ()
    task: Tensor = torch.zeros(0, dtype=torch.long)  # noqa: RUF009 (never changed in place)
    collates: tuple[Collate, ...] = ()  # how each task's items become a batch

    unit: ClassVar[str] = "examples"

    def __len__(self) -> int:
        return len(self.items)

    @property
    def examples_of_tasks(self) -> tuple[int, ...]:
        """The number of items of each task."""
        return tuple(self.task.bincount(minlength=len(self.collates)).tolist())

    @property
    def nbytes(self) -> int:
        return sum(item.nbytes for item in self.items)

    @property
    def total_nbytes(self) -> int:
        """The same as `nbytes`: every rank keeps all items."""
        return self.nbytes

    def size_per_example(self, *, in_bytes: bool) -> list[int]:
        """Return 1, or the mean number of bytes, for each task."""
        if not in_bytes:
            return [1] * len(self.collates)
        sizes = [[item.nbytes for item in self.at(self.rows_of(t))] for t in range(len(self.collates))]
        return [-(-sum(own) // len(own)) for own in sizes]

    def with_examples(self, tasks: Sequence[Tensor]) -> "Items":
        """Return only some items of each task, by their ascending numbers."""
        return self._select(torch.cat([self.rows_of(t)[rows] for t, rows in enumerate(tasks)]))

    def without_task(self, task: int) -> "Items":
        """Return the items of the other tasks."""
        return self._select((self.task != task).nonzero().flatten())

    def with_task(self, new: Sequence[Item], collate: Collate) -> "Items":
        """Return these items and the items of a new task."""
        task = torch.cat([self.task, torch.full((len(new),), len(self.collates))])
        return Items((*self.items, *new), task, (*self.collates, collate))

    def rows_of(self, task: int) -> Tensor:
        """Return the numbers of a task's items."""
        return (self.task == task).nonzero().flatten()

    def at(self, rows: Tensor) -> list[Item]:
        return [self.items[row] for row in rows.tolist()]

    def with_items(self, rows: Tensor, new: Sequence[Item]) -> "Items":
        """Return the items with others in place of some."""
        changed = dict(zip(rows.tolist(), new, strict=True))
        return replace(self, items=tuple(changed.get(row, item) for row, item in enumerate(self.items)))

    @property
    def fingerprint(self) -> bytes:
        """A hash of all items and their tasks."""
        return digest(b"".join(item.fingerprint for item in self.items) + repr(self.task.tolist()).encode())

    def _select(self, rows: Tensor) -> "Items":
        left, task = self.task[rows].unique(return_inverse=True)  # tasks left empty are removed
        collates = tuple(self.collates[t] for t in left.tolist())
        return Items(tuple(self.at(rows)), task, collates)


def gather_items(drawn: Sequence[Item], count: int | None, generator: Generator) -> list[Item]:
    """Return the items of a new task, drawn among the candidates of all ranks, none twice. Collective."""
    seen: dict[bytes, int] = {}

    def candidates() -> tuple[list[tuple[bytes, int]], int]:
        keys = []
        for item in drawn:
            seen[item.fingerprint] = number = seen.get(item.fingerprint, -1) + 1
            keys.append((item.fingerprint, number))
        return keys, generator.initial_seed()

    offers, (seed, *_) = zip(*gather_results(candidates, "draw its items"), strict=True)
    given = shares(offers, count, seed)[dist.get_rank()]
    mine = [drawn[i].cpu() for i in given]
    return [item for theirs in gather_results(lambda: mine, "give its items") for item in theirs]


def _copy(leaf: Any) -> Any:
    try:
        return copy.deepcopy(leaf)
    except Exception as error:
        raise ValueError(
            f"an item holds {type(leaf).__name__}, which cannot be copied ({error}): let the data set return tensors, "
            "numbers and texts, and make the object in collate="
        ) from error
