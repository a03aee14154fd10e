"""class ExampleMemory: the memory that keeps examples and outputs instead of gradients, `Memory(keep="examples")`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from ogd import seeds
from ogd.memory.checks import check_forgotten, check_parameters, check_task
from ogd.memory.gradients.explain import Explanation
from ogd.memory.gradients.preserving import preserving
from ogd.memory.gradients.remembering import torch_seed
from ogd.memory.inputs.batches import as_pair, length
from ogd.memory.inputs.examples import Chunk, Drawn
from ogd.memory.inputs.outputs import Chosen, Logits
from ogd.memory.memory import KEEPING
from ogd.memory.projection.store import Store
from ogd.memory.protection.protection import Protection
from ogd.memory.protection.rehearsal import Rehearsal
from ogd.memory.protection.stats import Stats
from ogd.memory.protection.watching import Fingerprint, warn_of_other_weights
from ogd.memory.protection.way import ALPHA, Way
from ogd.memory.ranks.shared import all_examples, common
from ogd.memory.rehearsal import saved
from ogd.memory.rehearsal.ahead import Ahead
from ogd.memory.rehearsal.answers import answered
from ogd.memory.rehearsal.examples import Examples, Task
from ogd.memory.rehearsal.explain import TRIED, explained
from ogd.memory.rehearsal.loss import comparable
from ogd.memory.rehearsal.rehearsing import Rehearsing
from ogd.memory.rehearsal.reservoir import reservoir
from ogd.memory.rehearsal.room import within


class ExampleMemory(Rehearsing):
    """Examples with the outputs that the model gave for them: what `Memory(model, keep="examples")` makes.

    Inputs are kept in as few bytes as lose nothing, or next to nothing (`rehearsal.packed`), with labels where they are
    given, and the outputs at the time. What is kept never changes. Labels that repeat the tokens of the input, as
    Hugging Face's causal models take them, are kept as the next token of each. A frozen model can be remembered too,
    and is protected when it is unfrozen.

    Examples:
        >>> from ogd.memory import Memory
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(4, 3)
        >>> memory = Memory(model, per_task=2, keep="examples")
        >>> memory.remember((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
        >>> memory
        Memory(2 examples of 1 task, 42 bytes; of Linear)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rehearsal = memory.protect(optimizer)
    """

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
        examples = f"{len(self):,} example{'' if len(self) == 1 else 's'}"
        return f"Memory({examples} of {tasks}, {self.nbytes:,} bytes; of {type(self.model).__name__})"

    def forget(self, task: int) -> None:
        """Forget a task, by its place in `tasks`: it is neither rehearsed nor protected any more."""
        check_forgotten(task, len(self.tasks))
        self._settle_and_look()
        gone = self.examples.rows_of(range(len(self.tasks))[task])
        rows = torch.arange(len(self))
        with self._changing():
            self._hold_examples(self.examples.only(rows[~torch.isin(rows, gone)]))
            self._guarded = True  # the last task may be one whose outputs have moved since, as they may

    def observe(self, x: Any, y: Any = None) -> None:
        """Show the memory a batch of a stream that has no tasks: it keeps a uniform draw of all it has seen.

        Call it in your loop, with the batch that you train on. At most `per_task` examples are kept (a reservoir),
        each with the model's outputs at the time it entered. A memory keeps a stream or tasks, not both.

        Examples:
            >>> from ogd.memory import Memory
            >>> memory = Memory(torch.nn.Linear(4, 3), per_task=8, keep="examples")
            >>> for _ in range(5):
            ...     memory.observe(torch.randn(6, 4), torch.zeros(6).long())
            >>> memory.tasks, memory.observed
            ((8,), 30)
        """
        if self.per_task is None:
            raise ValueError("per_task=None keeps all of a task, and a stream has no end: give the memory a number")
        if self._shared:
            raise ValueError("observe is for one process: with several ranks remember tasks, or use distributed=False")
        if len(self) and not self.observed:
            raise ValueError("this memory holds tasks: observe a stream with a memory of its own")
        check_parameters(self.model)
        chunk = as_pair((x, y))
        n = length(chunk)
        generator = seeds.generator(self.seed, "stream", self.observed)
        stay, enter = reservoir(len(self), self.observed, n, self.per_task, generator)
        if enter:
            chosen = self._chosen(None, None)
            with self.statistics.noting() as called, preserving(chosen.model), torch.no_grad():
                params, only = self.parameters.trainable(), torch.tensor(enter)
                new = list(answered(chosen, params, [chunk], self._device, only=only))
            examples = self._here().only(torch.tensor(stay)) if stay else Examples()
            examples = examples.extended(new) if stay else examples.grown(new, Task())
            self.budget.check(len(examples), examples.nbytes, "examples")
            with self._changing():
                self._hold_examples(examples)
                self.statistics.names = self.statistics.names | called
                self.statistics.hold()
                self.observed += n
        else:
            self.observed += n

    def stats(self) -> Stats:
        """How far the remembered outputs have moved, task by task; and what projection does to the updates."""
        check_parameters(self.model)
        if self._protections:
            self._look()
        rows = [self.examples.rows_of(t) for t in range(len(self.tasks))]
        drift = tuple(self._moved(own)[0] for own in rows)
        size = sum(p.numel() for p in self.parameters.trainable().values())
        return Stats(self._shares_kept(), len(self.store), None, size, drift)

    def explain(
        self, data: object, *, classes: Sequence[int] | None = None, logits: Logits | None = None
    ) -> Explanation:
        """How `remember` would keep such data, found out on some examples: a dry run.

        Examples:
            >>> from ogd.memory import Memory
            >>> _ = torch.manual_seed(0)
            >>> memory = Memory(torch.nn.Linear(4, 3), keep="examples")
            >>> print(memory.explain((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))))
            kept                   bytes  stored
            input                      8  float16, in place of float32
            label                      1  uint8, in place of int64
            output                    12  float32
            together, per example     21
        """
        check_task(classes, logits, None)
        check_parameters(self.model)
        chosen = self._chosen(logits, classes)
        drawn = Drawn(data, TRIED, Generator().manual_seed(0), TRIED)
        with preserving(chosen.model), torch.no_grad():
            tried = Examples().grown(answered(chosen, self.parameters.trainable(), drawn, self._device), Task())
        if not len(tried):
            raise ValueError("data is empty: there is no example to explain")
        return explained(tried)

    def state_dict(self) -> dict[str, Any]:
        """Everything stored, as plain values and tensors."""
        self._settle()
        if self._protections and not self._shared:  # other ranks may not take part, and a sharded model waits for them
            self._look()
        weights = Fingerprint.of(Store(), self.parameters.named()).to_state()
        return {**saved.to_dict(self), "statistics": sorted(self.statistics.names), "weights": weights}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace what is stored by a `state_dict`, tried on the model; an error changes nothing."""
        check_parameters(self.model)
        found = saved.from_dict(stored)
        weights = Fingerprint.from_state(stored.get("weights"), 0)
        examples = found.examples.to(self._device)
        self._check_fits(examples)
        generator = seeds.generator(found.seed, "load", len(examples))
        examples = within(self.budget, self.when_full, examples, generator)
        self._settle()
        rehearsals = [p for p in self._protections if isinstance(p, Rehearsal)]
        if weights is not None and weights.differs(Store(), self.parameters.named()):
            warn_of_other_weights("its outputs have nothing to do with those that are remembered")
        with self._changing(*rehearsals):
            self.statistics.restore(stored)
            self.seed, self.draws, self._resumed = found.seed, found.draws, found.since
            self.observed = found.observed
            for rehearsal in rehearsals:
                rehearsal.since = self._taken(len(rehearsal.since))
            self._hold_examples(examples)
            self._guarded = True
            if self._protections:
                self.statistics.hold()

    def remembered_loss(self, batch: int, *, alpha: float = ALPHA, labels: bool = True) -> Tensor | None:
        """The mean remembered loss of some examples drawn from memory, with its graph; None while there are none.

        For those who want the loss in their own loop instead of `protect(optimizer, by="rehearsal")`. With several
        ranks each takes its part of the batch: their sum is the loss.
        """
        found = self._loss(Way.chosen("examples", "rehearsal", 1, batch=batch, alpha=alpha, labels=labels))
        return None if found is None else found[0] / found[1]

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which protect no optimizer; what is pending is projected first."""
        return {**super().__getstate__(), "_resumed": self.since, "_ahead": Ahead()}

    def _keep(self, chosen: Chosen, params: Mapping[str, Tensor], examples: Drawn) -> None:
        if self.observed:
            raise ValueError("this memory keeps a stream (observe): remember tasks with a memory of its own")
        examples.labelled |= self.outputs == "true" and any(isinstance(p, Protection) for p in self._protections)
        chunks: Iterable[Chunk] = all_examples(examples) if self._shared else examples
        task = Task(
            None if chosen.classes is None else tuple(chosen.classes),
            None if chosen.logits is self.logits else chosen.logits,
        )
        generator = common(examples.generator) if self._shared else examples.generator
        with preserving(chosen.model), torch.no_grad():
            new = answered(chosen, params, chunks, self._device, expected=examples.count)
            grown = self._here().grown(new, task)
        if len(grown) == len(self):
            raise ValueError("data is empty: there is no example to remember")
        grown = within(self.budget, self.when_full, grown, generator)
        if not len(self):
            self.seed = torch_seed(self._shared)
        self._hold_examples(grown)
        self._guarded = False

    def _hold_examples(self, examples: Examples) -> None:
        self.examples, self._ahead = examples, Ahead()
        self._replace(Store(), bind=False)

    def _check_fits(self, examples: Examples) -> None:
        """Raise a ValueError unless the model takes an example of each form."""
        with preserving(self.model), torch.no_grad():
            for lot in examples.lots:
                batch = lot.batch(torch.zeros(1, dtype=torch.long, device=lot.z.device), examples.tasks)
                try:
                    comparable(self._outputs(batch), batch.z)
                except Exception as error:
                    raise ValueError(
                        f"the memory belongs to another model: for its examples, this one fails ({error})"
                    ) from error


KEEPING["examples"] = ExampleMemory
