"""The examples that are kept, task by task: inputs, labels where given, and the model's outputs at the time.

Examples lie together in a lot, whatever their task, if they have the same form (shapes, and the function that computes
their logits) and fit one packing. A batch drawn from all lots of one form goes through the model at once. What is
stored stays as it is, bit for bit, whatever is added or removed later.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ogd.memory.ranks.alike import bytes_of, hashed
from ogd.memory.rehearsal.packed import Packed, joined

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
    """Examples of one form and one packing."""

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

    def joined(self, other: "Lot") -> "Lot | None":
        """The examples of both; None if they differ in form, or if some tensors have to stay apart."""
        if self.form != other.form:
            return None
        parts = [joined(a, b) for a, b in zip(self.packed, other.packed, strict=True)]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        z, task = torch.cat([self.z, other.z]), torch.cat([self.task, other.task])
        n = len(self.leaves)
        return replace(self, leaves=tuple(whole[:n]), y=whole[n] if self.y is not None else None, z=z, task=task)

    def only(self, rows: Tensor) -> "Lot":
        leaves = tuple(leaf.only(rows) for leaf in self.leaves)
        y = None if self.y is None else self.y.only(rows)
        return replace(self, leaves=leaves, y=y, z=self.z[rows], task=self.task[rows])

    def unpacked(self, rows: Tensor) -> list[Tensor]:
        """Some examples: the tensors of x, y where it is kept, z and task."""
        return [*(leaf[rows] for leaf in self.packed), self.z.index_select(0, rows), self.task.index_select(0, rows)]

    def batch(self, rows: Tensor, tasks: Sequence[Task]) -> Batch:
        return self.batch_of(self.unpacked(rows), tasks)

    def batch_of(self, unpacked: Sequence[Tensor], tasks: Sequence[Task]) -> Batch:
        """What `unpacked` has given, perhaps that of several lots of this form."""
        *tensors, z, task = unpacked
        x, y = filled(self.structure, tensors), None if self.y is None else tensors[-1]
        classes = {t: task.classes for t, task in enumerate(tasks) if task.classes is not None}
        if not classes:
            return Batch(x, y, z, self.logits)
        here = set(task.unique().tolist())
        return Batch(x, y, z, self.logits, task, {t: own for t, own in classes.items() if t in here})


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

    @cached_property
    def alike(self) -> bool:
        """Whether all examples have one form: a batch of them goes through the model at once."""
        return len({lot.form for lot in self.lots}) == 1

    def grown(self, new: Iterable[Lot], task: Task) -> "Examples":
        """These examples and those of another task."""
        return Examples(self.lots, (*self.tasks, task)).extended(new)

    def extended(self, new: Iterable[Lot]) -> "Examples":
        """These examples and more of the last task."""
        lots, number, logits = list(self.lots), len(self.tasks) - 1, self.tasks[-1].logits
        for some in new:
            lot = replace(some, task=torch.full_like(some.task, number), logits=logits)
            for i, old in enumerate(lots):
                if (whole := old.joined(lot)) is not None:
                    lots[i] = whole
                    break
            else:
                lots.append(lot)
        return Examples(tuple(lots), self.tasks)

    def only(self, rows: Tensor) -> "Examples":
        """Some examples, by their ascending numbers over all lots; a task of which none is left is no task any more."""
        lots = [lot.only(own) for lot, own, _ in self._by_lot(rows)]
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
        """Some examples, those of one form together, in the order of `rows`."""
        forms: dict[Any, list[tuple[Lot, Tensor, Tensor]]] = {}
        for part in self._by_lot(rows):
            forms.setdefault(part[0].form if len(self.lots) > 1 else None, []).append(part)
        for parts in forms.values():
            unpacked = [lot.unpacked(own) for lot, own, _ in parts]
            if len(parts) > 1:
                order = torch.cat([places for *_, places in parts]).argsort()
                unpacked = [[torch.cat(tensors)[order] for tensors in zip(*unpacked, strict=True)]]
            yield parts[0][0].batch_of(unpacked[0], self.tasks)

    def to(self, device: torch.device) -> "Examples":
        """The same on another device."""
        return replace(self, lots=tuple(_moved(lot, device) for lot in self.lots))

    def _by_lot(self, rows: Tensor) -> Iterator[tuple[Lot, Tensor, Tensor]]:
        """Each lot of which there are some, their places in it, and those in `rows`."""
        if len(self.lots) == 1 and len(rows):
            yield self.lots[0], rows.to(self.lots[0].z.device), rows
            return
        start = 0
        for lot in self.lots:
            places = ((rows >= start) & (rows < start + lot.n)).nonzero().flatten()
            if len(places):
                yield lot, (rows[places] - start).to(lot.z.device), places.to(lot.z.device)
            start += lot.n


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
