"""The half of `ExampleMemory` that protects: by rehearsal, or by projection with gradients of the present weights."""

import itertools
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ogd.memory.gradients.gather import CHUNK_MOST, check_dependent
from ogd.memory.gradients.preserving import calm, preserving
from ogd.memory.gradients.remembering import TaskRows, plain_pieces, rows_of_each, torch_seed
from ogd.memory.inputs.outputs import scores
from ogd.memory.memory import Memory
from ogd.memory.model.walking import first_parameter
from ogd.memory.projection.projector import Projector, projector_of
from ogd.memory.projection.store import Store
from ogd.memory.protection.hooked import Hooked
from ogd.memory.protection.protection import Protection
from ogd.memory.protection.rehearsal import Rehearsal
from ogd.memory.protection.watching import LOOKED_AT
from ogd.memory.protection.way import Way
from ogd.memory.ranks.alike import check_same
from ogd.memory.ranks.collective import summed
from ogd.memory.rehearsal.ahead import Ahead, drawn
from ogd.memory.rehearsal.examples import Batch, Examples
from ogd.memory.rehearsal.loss import comparable, remembered_loss

_CPU = torch.device("cpu")
ROUNDED = {torch.bfloat16: 0.2, torch.float16: 0.05}  # shares of outputs that rounding may change; less for others


class Rehearsing(Memory):
    """Examples that are rehearsed or projected; `ExampleMemory` fills them."""

    def __init__(
        self,
        model: torch.nn.Module,
        per_task: int | None = 200,
        *,
        keep: Literal["examples"] = "examples",
        **options: Any,
    ):
        if keep != "examples":
            raise ValueError('an ExampleMemory keeps examples: for keep="gradients" make a Memory')
        super().__init__(model, per_task, keep=keep, **options)
        if self.sharded or self.dtype is not None:
            which = "sharded=True" if self.sharded else "dtype="
            raise ValueError(f'{which} applies to stored gradients: keep="examples" stores none')
        self.examples = Examples()
        self.seed = torch_seed()
        self.draws = 0  # so many batches have been rehearsed: the next is drawn by this number
        self._ahead = Ahead()
        self.observed = 0  # so many examples of a stream have been seen
        self._resumed: list[int] = []  # see `since`; of optimizers that are not protected yet
        self._same: Examples | None = None  # the last examples that were seen to be the same on all ranks
        self._guarded = True  # whether there was a protected step since the last task was remembered

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.examples)

    @property
    def since(self) -> list[int]:
        """Steps since their last rehearsal, of the protected optimizers in their order."""
        live = [n for p in self._protections if isinstance(p, Rehearsal) for n in p.since]
        return live or list(self._resumed)

    def _settle(self) -> None:
        self._guarded |= any(p.stepped for p in self._protections)
        super()._settle()

    def _loss(self, way: Way) -> tuple[Tensor, int] | None:
        """The summed loss of some examples, on this rank, and how many they are on all; None while there are none."""
        shared = self._shared
        if shared:
            self._check_alike()
        self._guarded = True
        if not len(self):
            return None
        if not way.alpha and not any(lot.labelled for lot in self.examples.lots):
            raise ValueError("alpha=0 rehearses the labels alone, and no labels are kept: give alpha= a weight")
        number, self.draws = self.draws, self.draws + 1
        with calm(self.model):
            parts = [
                remembered_loss(self._outputs(part), part, way.alpha, way.labels)
                for part in self._drawn(number, way.batch, shared)
            ]
            none = torch.zeros((), device=self._device) if not parts else parts[0]  # a rank may have none
            loss = sum(parts[1:], start=none)
        if parts and not loss.requires_grad and self.parameters.trainable():
            raise ValueError(
                "the remembered outputs do not depend on any trainable parameter, so rehearsal cannot protect them: "
                "look at logits=, and for .detach() or no_grad in the model"
            )
        return loss, min(way.batch, len(self))

    def _drawn(self, number: int, size: int, shared: bool) -> Iterable[Batch]:
        """This rank's part of a batch."""
        examples = self._here()
        if examples.alike and not shared:
            return [self._ahead.batch(examples, self.seed, number, size)]
        rows = drawn(self.seed, number, len(self), size)
        return examples.batches(rows[dist.get_rank() :: dist.get_world_size()] if shared else rows)

    def _rehearsed(self, optimizers: list[Optimizer], way: Way) -> Rehearsal:
        assert isinstance(way.every, int)
        return Rehearsal(
            optimizers,
            way.every,
            way.batch,
            lambda _: self._loss(way),
            lambda params: params if self.parameters.wanted is None else list(self.parameters.among(params).values()),
            lambda: summed if self._shared else None,
            self._on_end,
            self._taken(len(optimizers)),
        )

    def _taken(self, n: int) -> list[int]:
        taken, self._resumed = self._resumed[:n], self._resumed[n:]
        return taken + [0] * (n - len(taken))

    def _projected(self, optimizers: list[Optimizer], way: Way) -> Protection:
        self._gradients(tried=True)
        return super()._projected(optimizers, way)

    def _outputs(self, batch: Batch) -> Tensor:
        model, logits = self._called(batch.logits)
        return scores(model, batch.x, logits)

    def _moved(self, rows: Tensor) -> tuple[float, float]:
        """The root mean square change of some examples' outputs, and that of the outputs."""
        change, size, n = 0.0, 0.0, 0
        with preserving(self.model), torch.no_grad():
            for some in rows.split(self.chunk_size or CHUNK_MOST):
                for batch in self._here().batches(some):
                    z = comparable(self._outputs(batch), batch.z).double()
                    counts = batch.counts(z.shape[-1])
                    z, before = (t if counts is None else t[counts] for t in (z, batch.z.double()))
                    change += float((z - before).square().sum())
                    size += float(before.square().sum())
                    n += z.numel()
        return (change / max(n, 1)) ** 0.5, (size / max(n, 1)) ** 0.5

    @property
    def _device(self) -> torch.device:
        first = first_parameter(self.model)
        return _CPU if first is None else first.device

    def _here(self) -> Examples:
        """The examples, which follow the model to its device."""
        device = self._device
        if any(lot.z.device != device for lot in self.examples.lots):
            self.examples = self.examples.to(device)
        return self.examples

    def _check_alike(self) -> None:
        if self._shared and self._same is not self.examples:
            words = f"{len(self):,} examples in {self.nbytes:,} bytes"
            check_same(lambda: (self.examples.fingerprint, words))
            self._same = self.examples

    def _look(self) -> None:
        """Warn once if remembered outputs have moved, and there was no protected step that could have moved them."""
        self._guarded |= any(p.stepped for p in self._protections)
        if self._guarded or self._watch.warned or not len(self):
            return
        moved, size = self._moved(self.examples.rows_of(len(self.tasks) - 1)[-LOOKED_AT:])
        if moved > size * max(ROUNDED.get(p.dtype, 0.02) for p in self.model.parameters()):
            self._watch.warned = True
            warnings.warn(
                "the weights have moved since the last task was remembered, and remembered outputs with them, without "
                "a protected step: was memory.protect(optimizer) left out for a new optimizer, does an optimizer move "
                "weights outside its step() (docs/loops.md), or were other weights loaded?",
                stacklevel=4,
            )

    def _on_end(self, *ending: Hooked) -> None:
        self._guarded |= any(protection.stepped for protection in ending)
        super()._on_end(*ending)
        if not any(isinstance(p, Protection) for p in self._protections):
            self.store = Store()

    def _stale(self, way: Way) -> Callable[[], bool]:
        steps = itertools.count(1)
        return lambda: next(steps) % way.refresh == 0

    def _account(self) -> None:
        """Nothing to do: nothing is stored by the names of parameters."""

    def _projector_among(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        """P from the gradients of the kept examples at the present weights."""
        self._check_alike()
        params = self.parameters.among(tensors)
        if not len(self) or not params:
            return None
        self.store = self._gradients()
        projector = projector_of(self.store, params)
        return None if projector is None else (projector, [params[name] for name in projector.names])

    def _present(self) -> Store:
        return self._gradients()

    def _gradients(self, tried: bool = False) -> Store:
        """G at the present weights; or only a trial, on an example of each task."""
        params, store = self.parameters.trainable(), Store()
        for t, task in enumerate(self.examples.tasks if params else ()):  # nothing moves while all is frozen
            rows = self.examples.rows_of(t)[: 1 if tried else None]
            chunks = [(batch.x, batch.y) for batch in self._here().batches(rows)]
            chosen = self._chosen(task.logits, task.classes)
            pieces, n = plain_pieces(chosen, params, chunks, len(store), self.chunk_size)
            check_dependent(bool(pieces))
            store = TaskRows(pieces, n, rows_of_each(n, len(rows))).added_to(store, params)
        return store
