"""class ExampleMemory: the memory that keeps examples and outputs instead of gradients, `Memory(keep="examples")`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ogd.memory.algebra.projector import Projector, projector_of
from ogd.memory.algebra.store import Store
from ogd.memory.checks import check_forgotten
from ogd.memory.gradients.preserving import evaluating, preserving
from ogd.memory.gradients.remembering import TaskRows, plain_pieces, rows_of_each, seeded
from ogd.memory.inputs.batches import length
from ogd.memory.inputs.examples import Chunk, Drawn
from ogd.memory.inputs.outputs import Chosen
from ogd.memory.memory import KEEPING, Memory
from ogd.memory.model.names import unwrapped
from ogd.memory.protection.rehearsal import Rehearsal
from ogd.memory.protection.stats import Stats
from ogd.memory.protection.way import Way
from ogd.memory.ranks.collective import summed
from ogd.memory.ranks.shared import all_examples, common
from ogd.memory.rehearsal import saved
from ogd.memory.rehearsal.examples import Batch, Examples, Task, emptied, filled
from ogd.memory.rehearsal.loss import check_classes, remembered_loss
from ogd.memory.rehearsal.packed import packed
from ogd.memory.rehearsal.room import within


class ExampleMemory(Memory):
    """Examples with the outputs that the model gave for them: what `Memory(model, keep="examples")` makes.

    Inputs are kept in as few bytes as lose nothing, or next to nothing (`rehearsal.packed`), with labels where they are
    given, and the outputs at the time.

    Examples:
        >>> model = torch.nn.Linear(4, 3)
        >>> memory = Memory(model, per_task=2, keep="examples")
        >>> memory.remember((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
        >>> memory
        Memory(2 examples of 1 task, 58 bytes; of Linear)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rehearsal = memory.protect(optimizer)
    """

    def __init__(self, model: torch.nn.Module, per_task: int | None = 200, **options: Any):
        super().__init__(model, per_task, **options)
        if self.sharded or self.dtype is not None:
            which = "sharded=True" if self.sharded else "dtype="
            raise ValueError(f'{which} is of stored gradients: keep="examples" stores none')
        self.examples = Examples()
        self.draws = 0  # so many batches have been rehearsed: the next is drawn by this number

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.examples)

    @property
    def tasks(self) -> tuple[int, ...]:
        """The number of examples of each remembered task."""
        return self.examples.counts

    @property
    def nbytes(self) -> int:
        """Bytes of the examples and their outputs; about as much is written by `save`."""
        return self.examples.nbytes

    @property
    def resident_nbytes(self) -> int:
        """Bytes in use: the examples, and the gradients and projectors where protection is by projection."""
        return self.nbytes + super().resident_nbytes

    def __repr__(self) -> str:
        tasks = f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}"
        return f"Memory({len(self):,} examples of {tasks}, {self.nbytes:,} bytes; of {type(self.model).__name__})"

    def forget(self, task: int) -> None:
        """Forget a task, by its place in `tasks`: it is neither rehearsed nor protected any more."""
        check_forgotten(task, len(self.tasks))
        self.settle()
        gone = self.examples.rows_of(range(len(self.tasks))[task])
        rows = torch.arange(len(self))
        self._hold_examples(self.examples.only(rows[~torch.isin(rows, gone)]))

    def stats(self) -> Stats:
        """How far the remembered outputs have moved, task by task; and what projection does to the updates."""
        sums = [0.0] * len(self.tasks)
        numbers = [0] * len(self.tasks)
        with preserving(self.model), torch.no_grad():
            for t in range(len(self.tasks)):
                for rows in self.examples.rows_of(t).split(self.chunk_size or 256):
                    for batch in self.examples.batches(rows):
                        moved = self._outputs(batch) - batch.z
                        moved = moved if batch.counts is None else moved[batch.counts]
                        sums[t] += float(moved.double().square().sum())
                        numbers[t] += moved.numel()
        drift = tuple((total / max(n, 1)) ** 0.5 for total, n in zip(sums, numbers, strict=True))
        size = sum(p.numel() for p in self.parameters.trainable().values())
        return Stats(self._shares_kept(), len(self), None, size, drift)

    def state_dict(self) -> dict[str, Any]:
        """Everything stored, as plain values and tensors."""
        self.settle()
        return {**saved.to_dict(self), "statistics": sorted(self.statistics.names)}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace what is stored by a `state_dict`; an error changes nothing."""
        examples, draws = saved.from_dict(stored)
        examples = within(
            self.budget, self.when_full, examples.to(self._device), Generator().manual_seed(len(examples))
        )
        self.settle()
        self.statistics.restore(stored)
        self.draws = draws
        self._hold_examples(examples)
        if self._protections:
            self.statistics.hold()

    def remembered_loss(self, batch: int, *, alpha: float = 1.0, labels: bool = True) -> Tensor | None:
        """The mean remembered loss of some examples drawn from memory, with its graph; None while there are none.

        For those who want the loss in their own loop instead of `protect(optimizer, by="rehearsal")`. With several
        ranks each takes its part of the batch: their sum is the loss.
        """
        if not len(self):
            return None
        rows = torch.randperm(len(self), generator=seeded(self.draws))[:batch]
        self.draws += 1
        share = rows[dist.get_rank() :: dist.get_world_size()] if self._shared else rows
        total = torch.zeros((), device=self._device)
        with evaluating(self.model), torch.enable_grad():
            for part in self.examples.batches(share):
                total = total + remembered_loss(self._outputs(part), part, alpha, labels)
        return total / len(rows)

    def _rehearsed(self, optimizers: list[Optimizer], way: Way) -> Rehearsal:
        def loss(size: int) -> Tensor | None:
            return self.remembered_loss(size, alpha=way.alpha, labels=way.labels)

        assert isinstance(way.every, int)
        return Rehearsal(optimizers, way.every, way.batch, loss, summed if self._shared else None, self._on_end)

    def _keep(self, chosen: Chosen, params: Mapping[str, Tensor], examples: Drawn) -> None:
        chunks: Iterable[Chunk] = all_examples(examples) if self._shared else examples
        task = Task(
            None if chosen.classes is None else tuple(chosen.classes),
            None if chosen.logits is self.logits else chosen.logits,
        )
        generator = common(examples.generator) if self._shared else examples.generator
        with preserving(chosen.model), torch.no_grad():
            grown = self.examples.grown(self._answered(chosen, chunks), task)
        if len(grown) == len(self):
            raise ValueError("data is empty: there is no example to remember")
        self._hold_examples(within(self.budget, self.when_full, grown, generator))

    def _answered(self, chosen: Chosen, chunks: Iterable[Chunk]) -> Iterator[tuple[Any, Tensor | None, Tensor]]:
        """The examples with their outputs."""
        for chunk in chunks:
            x, y = pytree.tree_map(lambda t: t.to(self._device) if isinstance(t, Tensor) else t, chunk)
            y = y if isinstance(y, Tensor) else None
            if not length((x, y)):
                continue
            tensors, structure = emptied(x)
            x = filled(structure, [packed(t)[:] for t in tensors])  # as they will be kept
            z = chosen.scores(x)
            if len(z) != length((x, y)) or not z.isfinite().all():
                raise ValueError(
                    f"nothing was stored: outputs of shape {tuple(z.shape)} for {length((x, y))} examples, or not finite"
                )
            check_classes(z, y, chosen.classes)
            yield x, y, z

    def _outputs(self, batch: Batch) -> Tensor:
        return self._chosen(batch.logits, None).scores(batch.x)

    def _chosen(self, logits: Any, classes: tuple[int, ...] | None) -> Chosen:
        logits = logits or self.logits
        return Chosen(unwrapped(self.model) if logits is None else self.model, self.outputs, logits, classes)

    @property
    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _hold_examples(self, examples: Examples) -> None:
        self.examples = examples
        self._replace(Store(), bind=False)

    def _stale(self, way: Way) -> Callable[[], bool]:
        steps = itertools.count(1)
        return lambda: next(steps) % way.refresh == 0

    def _account(self) -> None:
        """Nothing is stored by the names of parameters."""

    def _projector_among(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        """P from the gradients of the kept examples at the present weights."""
        params = self.parameters.among(tensors)
        if not len(self) or not params:
            return None
        trainable = self.parameters.trainable()
        self.store = Store()
        for t, task in enumerate(self.examples.tasks):
            chosen = self._chosen(task.logits, task.classes)
            rows = self.examples.rows_of(t)
            chunks = [(batch.x, batch.y) for batch in self.examples.batches(rows)]
            pieces, n = plain_pieces(chosen, trainable, chunks, len(self.store), self.chunk_size)
            found = TaskRows(pieces, n, rows_of_each(n, len(rows)))
            self.store = found.added_to(self.store, trainable)
        projector = projector_of(self.store, params)
        return None if projector is None else (projector, [params[name] for name in projector.names])


KEEPING["examples"] = ExampleMemory
