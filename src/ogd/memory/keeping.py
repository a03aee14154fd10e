"""How a memory keeps gradients: another task's rows join the store, and what became of their parameters is followed."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ogd.memory.budget import Budget
from ogd.memory.gradients.remembering import task_rows
from ogd.memory.inputs.examples import Drawn
from ogd.memory.inputs.outputs import Chosen, Logits, Outputs
from ogd.memory.model.names import unwrapped
from ogd.memory.projection.projector import Projector, kept
from ogd.memory.projection.rows import within
from ogd.memory.projection.store import Store
from ogd.memory.protection.protecting import Protecting
from ogd.memory.protection.protection import Protection
from ogd.memory.ranks.shared import common, remembered


class Keeping(Protecting):
    """The part of `Memory` that fills and replaces its store."""

    budget: Budget
    when_full: str
    chunk_size: int | None
    dtype: torch.dtype | None
    sharded: bool
    outputs: Outputs
    logits: Logits | None

    def _chosen(self, logits: Logits | None, classes: Sequence[int] | None) -> Chosen:
        """The model with the outputs of a task on top, which may have a logits function of its own."""
        model, logits = self._called(logits)
        return Chosen(model, self.outputs, logits, classes)

    def _called(self, logits: Logits | None) -> tuple[nn.Module, Logits | None]:
        """The module that is called for the logits, and the function that calls it, a task's or the memory's own."""
        logits = logits or self.logits
        return unwrapped(self.model) if logits is None else self.model, logits

    def _projectors(self) -> list[Projector]:
        return [p.projector for p in self._protections if isinstance(p, Protection) and p.projector is not None]

    def _shares_kept(self) -> tuple[float, ...]:
        return tuple(kept(projector.last) for projector in self._projectors() if projector.last is not None)

    def _present(self) -> Store:
        """G at the present weights, or what comes nearest to it."""
        return self.store

    def _replace(self, store: Store, *, bind: bool = True) -> None:
        self.store = store
        if bind:
            self._binding.bind(store.shapes)
        for protection in self._protections:
            protection.forget()

    def _keep(self, chosen: Chosen, params: Mapping[str, Tensor], examples: Drawn) -> None:
        """Store a task, of which each rank differentiates its share."""
        generator = examples.generator
        if self._shared:
            store = remembered(self.store, chosen, params, examples, self.chunk_size, self.dtype, self.sharded)
            generator = common(generator)
        else:
            task = task_rows(chosen, params, examples, len(self.store), self.chunk_size, self.dtype)
            store = task.added_to(self.store, params)
        rows = store.tasks[-1]
        store = within(self.budget, self.when_full, store, generator)
        self._drift.remembered(self.store, store, self.parameters.named(), rows)
        self._replace(store)

    def _account(self) -> None:
        """Follow what has become of the remembered parameters, or raise; see `Binding`."""
        bound = self._binding.tensors
        with self._changing():
            store = self._binding.accounted(self.store)
            if self._binding.tensors is not bound:
                self._settle()
                self._drift.begin(store, self.parameters.named())  # counted from the new tensors
            if store is not self.store:
                self._replace(store)
