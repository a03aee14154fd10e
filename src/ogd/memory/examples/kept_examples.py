"""Keep examples of tasks: inputs, labels if they were given, and the model's outputs at the time.

Examples of one form (shapes, and the function that computes their logits) and one packing are in one group, whatever
their task. A batch drawn from all groups of one form goes through the model at once. Stored numbers never change, not
by one bit, when examples are added or removed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ogd.memory.data.batches import with_tensors, without_tensors
from ogd.memory.data.calling import Logits
from ogd.memory.data.labels import IGNORED, classifies, is_binary
from ogd.memory.examples.packing import Packed, join
from ogd.memory.examples.top_probabilities import Outputs, concatenate_outputs
from ogd.memory.ranks.agreement import bytes_of, digest


@dataclass(frozen=True, eq=False)
class Task:
    """The options of a remembered task."""

    classes: tuple[int, ...] | None = None  # the task's logits; None for all
    logits: Logits | None = None  # the task's own function; None for the memory's


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of one form: inputs x, labels y (or None), remembered outputs z, and the classes of their tasks."""

    x: Any
    y: Tensor | None
    z: Outputs
    logits: Logits | None = None
    task: Tensor | None = None
    classes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.z)

    def split(self, size: int) -> "list[Batch]":
        """Return batches of `size` examples, each with its own version counter: a model may change inputs in place."""
        tensors, structure = without_tensors(self.x)
        leaves = zip(*([part.data for part in t.split(size)] for t in tensors), strict=True)
        zs = self.z.split(size)
        ys, tasks = ([None] * len(zs) if t is None else t.split(size) for t in (self.y, self.task))
        parts = zip(leaves, ys, zs, tasks, strict=True)
        return [Batch(with_tensors(structure, x), y, z, self.logits, task, self.classes) for x, y, z, task in parts]

    @property
    def counted(self) -> Tensor | None:
        """Which positions of each example count, (B, …); None for all. Positions without a label and padding do not."""
        if self.z.ndim < 3:
            return None
        if self.y is not None and classifies(self.z, self.y):
            return self.y != IGNORED
        shown = self.x.get("attention_mask") if isinstance(self.x, dict) and "decoder_input_ids" not in self.x else None
        return shown != 0 if isinstance(shown, Tensor) and shown.shape == self.z.shape[:-1] else None

    def mask(self, C: int) -> Tensor | None:
        """Return which of C outputs belong to each example's task, (B, C); None for all."""
        if self.task is None or not self.classes:
            return None
        mask = torch.ones(len(self), C, dtype=torch.bool, device=self.z.device)
        for t, classes in self.classes.items():
            own = torch.zeros(C, dtype=torch.bool, device=self.z.device)
            own[list(classes)] = True
            mask[self.task == t] = own
        return mask


@dataclass(frozen=True, eq=False)
class Group:
    """Examples of one form and one packing."""

    leaves: tuple[Packed, ...]  # the tensors of x
    structure: Any  # x with a slot for each tensor
    y: Packed | None
    z: Outputs
    task: Tensor  # the number of each example's task, (n,)
    logits: Logits | None

    @property
    def n(self) -> int:
        return len(self.z)

    @property
    def labelled(self) -> bool:
        """Whether the group has labels that are classes."""
        return self.y is not None and (classifies(self.z, self.y.data) or is_binary(self.z, self.y.data))

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.packed) + self.z.nbytes

    @property
    def packed(self) -> tuple[Packed, ...]:
        """All packed tensors: the leaves of x, and y."""
        return self.leaves if self.y is None else (*self.leaves, self.y)

    @property
    def form(self) -> tuple[Any, ...]:
        shapes = tuple((leaf.data.shape[1:], leaf.dtype) for leaf in self.leaves)
        y = None if self.y is None else (self.y.data.shape[1:], self.y.dtype)
        z = type(self.z).__name__, self.z.shape[1:], self.z.dtype
        return repr(self.structure), shapes, y, z, id(self.logits)  # hashable

    def join(self, other: "Group") -> "Group | None":
        """Return the examples of both groups; None if their form or the packing of their tensors differs."""
        if self.form != other.form:
            return None
        parts = [join(a, b) for a, b in zip(self.packed, other.packed, strict=True)]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        z, task = concatenate_outputs([self.z, other.z]), torch.cat([self.task, other.task])
        n = len(self.leaves)
        return replace(self, leaves=tuple(whole[:n]), y=whole[n] if self.y is not None else None, z=z, task=task)

    def select(self, rows: Tensor) -> "Group":
        leaves = tuple(leaf.select(rows) for leaf in self.leaves)
        y = None if self.y is None else self.y.select(rows)
        return replace(self, leaves=leaves, y=y, z=self.z[rows], task=self.task[rows])

    def to(self, device: torch.device) -> "Group":
        leaves = tuple(leaf.to(device) for leaf in self.leaves)
        y = None if self.y is None else self.y.to(device)
        return replace(self, leaves=leaves, y=y, z=self.z.to(device), task=self.task.to(device))

    def unpack(self, rows: Tensor) -> list[Any]:
        """Return the tensors of some examples: the leaves of x, y if there are labels, z and task."""
        return [*(leaf[rows] for leaf in self.packed), self.z.index_select(0, rows), self.task.index_select(0, rows)]

    def batch(self, rows: Tensor, tasks: Sequence[Task]) -> Batch:
        return self.batch_of(self.unpack(rows), tasks)

    def batch_of(self, unpacked: Sequence[Any], tasks: Sequence[Task]) -> Batch:
        """Return a batch of the tensors that `unpack` returned, of one or several groups of this form."""
        *tensors, z, task = unpacked
        x, y = with_tensors(self.structure, tensors), None if self.y is None else tensors[-1]
        classes = {t: task.classes for t, task in enumerate(tasks) if task.classes is not None}
        if not classes:
            return Batch(x, y, z, self.logits)
        here = set(task.unique().tolist())
        return Batch(x, y, z, self.logits, task, {t: own for t, own in classes.items() if t in here})


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of all tasks, in groups."""

    groups: tuple[Group, ...] = ()
    tasks: tuple[Task, ...] = ()

    unit: ClassVar[str] = "examples"

    def __len__(self) -> int:
        return sum(group.n for group in self.groups)

    @property
    def examples_of_tasks(self) -> tuple[int, ...]:
        """The number of examples of each task."""
        return tuple(sum(int((group.task == t).sum()) for group in self.groups) for t in range(len(self.tasks)))

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def total_nbytes(self) -> int:
        """The same as `nbytes`: every rank keeps all examples."""
        return self.nbytes

    def size_per_example(self, *, in_bytes: bool) -> list[int]:
        """Return 1, or the mean number of bytes, for each task."""
        return [-(-self.nbytes // len(self)) if in_bytes else 1 for _ in self.tasks]

    def with_examples(self, tasks: Sequence[Tensor]) -> "Examples":
        """Return only some examples of each task, by their ascending numbers."""
        rows = torch.cat([self.rows_of(t)[examples] for t, examples in enumerate(tasks)])
        return self.select(rows.sort().values)

    def without_task(self, task: int) -> "Examples":
        """Return the examples of the other tasks."""
        return self.with_examples([torch.arange(0 if t == task else n) for t, n in enumerate(self.examples_of_tasks)])

    @property
    def fingerprint(self) -> bytes:
        """A hash of all inputs and labels. Outputs are left out because ranks may round them differently."""
        parts = [repr([(group.form[:-1], group.n) for group in self.groups]).encode()]
        for group in self.groups:
            parts += [bytes_of(t) for leaf in group.packed for t in (leaf.data, leaf.palette) if t is not None]
            parts.append(bytes_of(group.task))
        return digest(b"".join(map(digest, parts)))

    @cached_property
    def same_form(self) -> bool:
        """Whether all examples have one form, so that a batch goes through the model at once."""
        return len({group.form for group in self.groups}) == 1

    def with_task(self, new: Iterable[Group], task: Task) -> "Examples":
        """Return these examples and the examples of a new task."""
        return Examples(self.groups, (*self.tasks, task)).with_more(new)

    def with_more(self, new: Iterable[Group]) -> "Examples":
        """Return these examples and more of the last task."""
        groups, number, logits = list(self.groups), len(self.tasks) - 1, self.tasks[-1].logits
        for some in new:
            group = replace(some, task=torch.full_like(some.task, number), logits=logits)
            for i, old in enumerate(groups):
                if (whole := old.join(group)) is not None:
                    groups[i] = whole
                    break
            else:
                groups.append(group)
        return Examples(tuple(groups), self.tasks)

    def select(self, rows: Tensor) -> "Examples":
        """Return some examples, by their ascending numbers over all groups. Tasks left empty are removed."""
        groups = [group.select(own) for group, own, _ in self._by_group(rows)]
        left = sorted({t for group in groups for t in group.task.tolist()})
        place = torch.full((max(len(self.tasks), 1),), -1)
        place[left] = torch.arange(len(left))
        moved = [replace(group, task=place.to(group.task.device)[group.task]) for group in groups]
        return Examples(tuple(moved), tuple(self.tasks[t] for t in left))

    def rows_of(self, task: int) -> Tensor:
        """Return the numbers of a task's examples."""
        found, start = [], 0
        for group in self.groups:
            found.append(start + (group.task == task).nonzero().flatten().cpu())
            start += group.n
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)

    def batches(self, rows: Tensor) -> Iterator[Batch]:
        """Yield some examples, one batch per form, each in the order of `rows`."""
        forms: dict[Any, list[tuple[Group, Tensor, Tensor]]] = {}
        for part in self._by_group(rows):
            forms.setdefault(part[0].form if len(self.groups) > 1 else None, []).append(part)
        for parts in forms.values():
            unpacked = [group.unpack(own) for group, own, _ in parts]
            if len(parts) > 1:
                order = torch.cat([places for *_, places in parts]).argsort()
                unpacked = [[concatenate_outputs(same)[order] for same in zip(*unpacked, strict=True)]]
            yield parts[0][0].batch_of(unpacked[0], self.tasks)

    def to(self, device: torch.device) -> "Examples":
        """Return the examples on another device."""
        return replace(self, groups=tuple(group.to(device) for group in self.groups))

    def _by_group(self, rows: Tensor) -> Iterator[tuple[Group, Tensor, Tensor]]:
        """Yield each group that holds some of the rows, the rows' places in it, and their places in `rows`."""
        if len(self.groups) == 1 and len(rows):
            yield self.groups[0], rows.to(self.groups[0].z.device), rows
            return
        start = 0
        for group in self.groups:
            places = ((rows >= start) & (rows < start + group.n)).nonzero().flatten()
            if len(places):
                yield group, (rows[places] - start).to(group.z.device), places.to(group.z.device)
            start += group.n
