"""The examples that are kept, task by task: inputs, labels where given, and the model's outputs at the time.

Examples of the same form (shapes, and the function that computes their logits) lie together in a lot, whatever their
task: a batch drawn from all of them goes through the model at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ogd.memory.inputs.batches import length
from ogd.memory.ranks.alike import bytes_of, hashed
from ogd.memory.rehearsal.packed import Packed, joined, packed

Logits = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """What was remembered of a task, beside its examples."""

    classes: tuple[int, ...] | None = None  # its logits; None for all
    logits: Logits | None = None  # how they are computed, where that is the task's own way


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of one form: x, y (None without labels) and outputs z; the classes of those tasks that have some."""

    x: Any
    y: Tensor | None
    z: Tensor
    logits: Logits | None = None
    task: Tensor | None = None
    classes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.z)

    def split(self, size: int) -> "list[Batch]":
        """So many examples at a time. A model may change its inputs in place: each part has its own version counter."""
        tensors, structure = emptied(self.x)
        leaves = zip(*([part.data for part in t.split(size)] for t in tensors), strict=True)
        zs = self.z.split(size)
        ys, tasks = ([None] * len(zs) if t is None else t.split(size) for t in (self.y, self.task))
        parts = zip(leaves, ys, zs, tasks, strict=True)
        return [Batch(filled(structure, x), y, z, self.logits, task, self.classes) for x, y, z, task in parts]

    def counts(self, C: int) -> Tensor | None:
        """Which of C outputs are those of an example's task, (B, C); None for all."""
        if self.task is None or not self.classes:
            return None
        counts = torch.ones(len(self), C, dtype=torch.bool, device=self.z.device)
        for t, classes in self.classes.items():
            own = torch.zeros(C, dtype=torch.bool, device=self.z.device)
            own[list(classes)] = True
            counts[self.task == t] = own
        return counts


@dataclass(frozen=True)
class Place:
    """Where a tensor goes in an input."""

    number: int


@dataclass(frozen=True, eq=False)
class Lot:
    """Examples of one form."""

    leaves: tuple[Packed, ...]  # the tensors of x
    structure: Any  # x with a `Place` for each
    y: Packed | None
    z: Tensor
    task: Tensor  # of each example, (n,)
    logits: Logits | None

    @property
    def n(self) -> int:
        return len(self.z)

    @property
    def labelled(self) -> bool:
        """Whether it has labels that are classes."""
        return self.y is not None and classifies(self.z, self.y.data)

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.packed) + self.z.nbytes

    @property
    def packed(self) -> tuple[Packed, ...]:
        """All that is packed: the tensors of x, and y."""
        return self.leaves if self.y is None else (*self.leaves, self.y)

    @property
    def form(self) -> tuple[Any, ...]:
        shapes = tuple((leaf.data.shape[1:], leaf.dtype) for leaf in self.leaves)
        y = None if self.y is None else (self.y.data.shape[1:], self.y.dtype)
        return repr(self.structure), shapes, y, self.z.shape[1:], self.z.dtype, id(self.logits)  # hashable

    @classmethod
    def joined(cls, lots: "Sequence[Lot]") -> "Lot":
        """The examples of several lots of one form."""
        if len(lots) == 1:
            return lots[0]
        leaves = tuple(joined(parts) for parts in zip(*(lot.leaves for lot in lots), strict=True))
        labels = [lot.y for lot in lots if lot.y is not None]
        z, task = torch.cat([lot.z for lot in lots]), torch.cat([lot.task for lot in lots])
        return replace(lots[0], leaves=leaves, y=joined(labels) if labels else None, z=z, task=task)

    def only(self, rows: Tensor) -> "Lot":
        leaves = tuple(leaf.only(rows) for leaf in self.leaves)
        y = None if self.y is None else self.y.only(rows)
        return replace(self, leaves=leaves, y=y, z=self.z[rows], task=self.task[rows])

    def batch(self, rows: Tensor, tasks: Sequence[Task]) -> Batch:
        x = filled(self.structure, [leaf[rows] for leaf in self.leaves])
        y = None if self.y is None else self.y[rows]
        classes = {t: task.classes for t, task in enumerate(tasks) if task.classes is not None}
        if not classes:
            return Batch(x, y, self.z.index_select(0, rows), self.logits)
        task = self.task[rows]
        here = set(task.unique().tolist())
        classes = {t: own for t, own in classes.items() if t in here}
        return Batch(x, y, self.z[rows], self.logits, task, classes)


@dataclass(frozen=True, eq=False)
class Examples:
    """All lots, and the tasks."""

    lots: tuple[Lot, ...] = ()
    tasks: tuple[Task, ...] = ()

    def __len__(self) -> int:
        return sum(lot.n for lot in self.lots)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of examples of each task."""
        return tuple(sum(int((lot.task == t).sum()) for lot in self.lots) for t in range(len(self.tasks)))

    @property
    def nbytes(self) -> int:
        return sum(lot.nbytes for lot in self.lots)

    @property
    def fingerprint(self) -> bytes:
        """The same for the same examples. Outputs do not count: ranks may have rounded them differently."""
        parts = [repr([(lot.form[:-1], lot.n) for lot in self.lots]).encode()]
        for lot in self.lots:
            parts += [bytes_of(t) for leaf in lot.packed for t in (leaf.data, leaf.palette) if t is not None]
            parts.append(bytes_of(lot.task))
        return hashed(b"".join(map(hashed, parts)))

    def grown(self, chunks: Iterable[tuple[Any, Tensor | None, Tensor]], task: Task) -> "Examples":
        """These examples and those of another task, given as (x, y, z)."""
        return Examples(self.lots, (*self.tasks, task)).extended(chunks)

    def extended(self, chunks: Iterable[tuple[Any, Tensor | None, Tensor]]) -> "Examples":
        """These examples and more of the last task."""
        number, logits = len(self.tasks) - 1, self.tasks[-1].logits
        alike: dict[tuple[Any, ...], list[Lot]] = {}
        for lot in (*self.lots, *(lot_of(x, y, z, number, logits) for x, y, z in chunks)):
            alike.setdefault(lot.form, []).append(lot)
        return Examples(tuple(map(Lot.joined, alike.values())), self.tasks)

    def only(self, rows: Tensor) -> "Examples":
        """Some examples, by their ascending numbers over all lots; a task of which none is left is no task any more."""
        lots = [lot.only(own) for lot, own in self._by_lot(rows)]
        left = sorted({t for lot in lots for t in lot.task.tolist()})
        place = torch.full((max(len(self.tasks), 1),), -1)
        place[left] = torch.arange(len(left))
        moved = [replace(lot, task=place.to(lot.task.device)[lot.task]) for lot in lots]
        return Examples(tuple(moved), tuple(self.tasks[t] for t in left))

    def rows_of(self, task: int) -> Tensor:
        """The numbers of a task's examples."""
        found, start = [], 0
        for lot in self.lots:
            found.append(start + (lot.task == task).nonzero().flatten().cpu())
            start += lot.n
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)

    def batches(self, rows: Tensor) -> Iterator[Batch]:
        """Some examples, each lot's together."""
        for lot, own in self._by_lot(rows):
            yield lot.batch(own, self.tasks)

    def to(self, device: torch.device) -> "Examples":
        """The same on another device."""
        return replace(self, lots=tuple(_moved(lot, device) for lot in self.lots))

    def _by_lot(self, rows: Tensor) -> Iterator[tuple[Lot, Tensor]]:
        start = 0
        for lot in self.lots:
            own = rows if len(self.lots) == 1 else rows[(rows >= start) & (rows < start + lot.n)] - start
            if len(own):
                yield lot, own.to(lot.z.device)
            start += lot.n


def lot_of(x: Any, y: Tensor | None, z: Tensor, task: int, logits: Logits | None) -> Lot:
    """Some examples of a task as a lot."""
    tensors, structure = emptied(x)
    labels = None if y is None else packed(y.to(z.device))
    tasks = torch.full((length((x, y)),), task, dtype=torch.long, device=z.device)
    return Lot(tuple(packed(t.to(z.device)) for t in tensors), structure, labels, z.detach().clone(), tasks, logits)


def emptied(x: Any) -> tuple[list[Tensor], Any]:
    """The tensors of an input, and the input with their places.

    Examples:
        >>> emptied({"a": torch.ones(1), "b": "text"})
        ([tensor([1.])], {'a': Place(number=0), 'b': 'text'})
    """
    tensors: list[Tensor] = []

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return Place(len(tensors) - 1)

    return tensors, pytree.tree_map(place, x)


def filled(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """The input with tensors in their places."""
    if isinstance(structure, Place):
        return tensors[structure.number]
    return pytree.tree_map(lambda leaf: tensors[leaf.number] if isinstance(leaf, Place) else leaf, structure)


def _moved(lot: Lot, device: torch.device) -> Lot:
    leaves = tuple(leaf.to(device) for leaf in lot.leaves)
    y = None if lot.y is None else lot.y.to(device)
    return replace(lot, leaves=leaves, y=y, z=lot.z.to(device), task=lot.task.to(device))


def classifies(z: Tensor, y: Tensor) -> bool:
    """Whether y are the classes of outputs z: whole numbers, one per row of two or more outputs."""
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    return whole and z.ndim > 1 and z.shape[-1] > 1 and y.shape == z.shape[:-1]
