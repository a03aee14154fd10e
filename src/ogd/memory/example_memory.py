"""class ExampleMemory: keep a few examples with the model's outputs, and protect these outputs by rehearsal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ogd import defaults, seeds
from ogd.checks import whole_number
from ogd.json_files import number
from ogd.memory import saving
from ogd.memory.arguments import (
    Choice,
    check_bound,
    check_choice,
    check_classes,
    check_count,
    check_every,
    check_flag,
    check_functions,
    check_generator,
    check_logits,
    check_loss_weights,
    check_merge,
    check_optional_count,
    check_task,
)
from ogd.memory.changes.other_weights import Fingerprint, warn_of_other_weights
from ogd.memory.data.batches import as_pair, length
from ogd.memory.data.budget import Budget
from ogd.memory.data.calling import Logits
from ogd.memory.data.items import Collate
from ogd.memory.examples.example_kind import DrawnBatch, ExampleKind, NewTask
from ogd.memory.examples.kept_examples import Examples
from ogd.memory.examples.kept_items import Items
from ogd.memory.examples.pairs import Pairs
from ogd.memory.examples.rehearsal_gradient import by_backward, sum_gradients
from ogd.memory.examples.reservoir import reservoir
from ogd.memory.examples.user_items import UserItems
from ogd.memory.examples.user_loss import Loss
from ogd.memory.explanation import Explanation, explain_examples, explain_items
from ogd.memory.gradients.summed_gradients import summed_gradients
from ogd.memory.memory import Memory, Optimizers
from ogd.memory.model.checkpointing import checkpointing
from ogd.memory.model.eval_mode import eval_mode
from ogd.memory.model.parameters import device_of
from ogd.memory.model.supported import check_model
from ogd.memory.model.training_pass import TrainingPass
from ogd.memory.optimizers.rehearsal_hooks import Rehearsal
from ogd.memory.optimizers.step_hooks import Protection
from ogd.memory.projection.store import Store
from ogd.memory.ranks.agreement import check_same
from ogd.memory.ranks.collective import common_generator, sum_over_ranks, torch_seed
from ogd.memory.ranks.sharded_parameters import is_sharded
from ogd.memory.stats import ExampleStats

EXPLAINED = 64  # examples: enough to find their packing
ROUNDING = {torch.bfloat16: 0.2, torch.float16: 0.05}  # largest relative change of outputs by rounding
ROUNDING_ELSE = 0.02


class ExampleMemory(Memory):
    """A few examples of finished tasks with the model's outputs, which protect these outputs by rehearsal.

    Inputs are packed into few bytes, without loss or almost, and kept with their labels, if there are any, and with the
    outputs at the time. A kept example never changes. Of more than 4,096 class scores, such as a vocabulary's, the 32
    largest probabilities are kept. A frozen model can be remembered too; its protection begins when it is unfrozen.

    With `loss=` an example need not be a pair (x, y): the memory keeps items of the data set, whatever they are, makes
    batches of them by `collate=` and rehearses them by this loss (docs/any-loss.md). The model is in training mode
    then, because some models return losses in no other, but normalisations and modules without submodules (dropout) are
    in evaluation mode. What the loss draws (noise) comes from a seed of the memory's own; your random state stays.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(4, 3)
        >>> memory = ExampleMemory(model, per_task=2)
        >>> memory.remember((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
        >>> memory
        ExampleMemory(2 examples of 1 task, 42 bytes; of Linear)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rehearsal = memory.protect(optimizer)

    Args:
        model: any module.
        per_task: how many examples of a task, or of a stream, are kept; None for all.
        logits: a function (model, x) → z that computes the logits. None: they are model(x), model(*x) or model(**x),
            whichever fits the model's forward, or the `.logits` of its result.
        params: which parameters rehearsal moves: names, prefixes of names ("encoder") or parameters; None for all.
        budget: the largest number of examples, or of bytes ("64MB"), that may be stored; None: no limit.
        shrink: whether old tasks lose examples when a new task does not fit the budget, until all tasks have equal
            shares, as far as possible. False: raise `BudgetExceeded`.
        freeze_buffers: whether buffers that a forward pass would change (BatchNorm's running statistics) are frozen
            from the first remembered task on; such layers then use them in training too. False: they change, and
            remembered outputs drift with them.
        distributed: whether the ranks of torch.distributed share one memory. False: each rank has its own memory, for
            its own model.
        shift_labels: whether the model predicts, at each position, the label of the next, as causal language models
            do. None: the model's own loss shows it, or there is an error where nothing does.
        loss: a function (model, batch) → the mean loss of a batch of items, a tensor of one number. None: examples are
            pairs (x, y), and their loss is that of `protect`.
        collate: with loss=, a function that makes a batch of a list of items. None: the `collate_fn` of the DataLoader
            that `remember` gets, or torch's `default_collate`. Items of several functions are not in one batch.
        outputs: with loss=, a function (model, batch) → (B, …), or a list of B tensors: outputs of a model in
            evaluation mode whose change is added to the loss, with weight alpha. None: only the loss is rehearsed.
    """

    kind = "examples"

    def __init__(
        self,
        model: nn.Module,
        per_task: int | None = defaults.PER_TASK,
        *,
        logits: Logits | None = None,
        params: Iterable[str | nn.Parameter] | None = None,
        budget: int | str | Budget | None = None,
        shrink: bool = False,
        freeze_buffers: bool = True,
        distributed: bool = True,
        shift_labels: bool | None = None,
        loss: Loss | None = None,
        collate: Collate | None = None,
        outputs: Callable[[nn.Module, Any], Any] | None = None,
    ):
        check_functions(loss, collate, outputs, logits)
        super().__init__(
            model,
            per_task,
            logits=logits,
            params=params,
            budget=budget,
            shrink=shrink,
            freeze_buffers=freeze_buffers,
            distributed=distributed,
        )
        if shift_labels is not None:
            check_flag("shift_labels", shift_labels)
        self.shift_labels = shift_labels
        self._example_kind: ExampleKind[Any, Any] = (
            Pairs(model, logits, shift_labels) if loss is None else UserItems(model, loss, collate, outputs)
        )
        self.examples: Examples | Items = self._example_kind.empty()
        self.seed = torch_seed()
        self.draws = 0  # number of rehearsed batches, which seeds the next draw
        self.observed = 0  # number of examples of the stream so far
        self._training_pass = TrainingPass()
        self._reentrant = False  # whether the model's checkpointing needs `backward`
        self._alike: Examples | Items | None = None  # the last examples that were found equal on all ranks
        self._had_protected_step = True  # whether there was a protected step since the last task was remembered

    def __len__(self) -> int:
        """Return the number of kept examples."""
        return len(self.examples)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """The number of examples of each remembered task."""
        return self.examples.examples_of_tasks

    @property
    def nbytes(self) -> int:
        """The bytes of the examples and their outputs, about the size of the file that `save` writes."""
        return self.examples.nbytes

    def __repr__(self) -> str:
        tasks = f"{len(self.task_sizes)} task{'' if len(self.task_sizes) == 1 else 's'}"
        examples = f"{len(self):,} example{'' if len(self) == 1 else 's'}"
        return f"{type(self).__name__}({examples} of {tasks}, {self.nbytes:,} bytes; of {type(self.model).__name__})"

    def remember(
        self,
        data: object,
        *,
        per_task: int | None = None,
        choose: Choice = "uniform",
        merge: int = 1,
        classes: Sequence[int] | None = None,
        logits: Logits | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Keep examples of a finished task with the outputs that the model gives for them now, in evaluation mode.

        The model's modes, buffers, gradients and hooks and the random state are restored. With several ranks of
        torch.distributed all must call it, each with its part of the data or all with the same data.

        Args:
            data: a DataLoader, a Dataset, tensors, or a list of batches or examples. A batch is a pair (x, y), where x
                may be a tuple, list or dict of tensors; a triple (x, y, task); inputs and labels (a, b, y); a dict with
                the key "labels"; or inputs without labels, such as the dict that a tokenizer gives.
            per_task: how many examples of this task are kept; None: the memory's own number.
            choose: how the examples are drawn. "uniform": every example is equally likely. "balanced": equal numbers
                of each label, as far as possible; this reads all of the data.
            merge: draw `merge × per_task` examples, group similar ones of each label and keep the means of the groups.
                It needs floating-point inputs and one process. Labels that are not classes do not affect the grouping,
                and are averaged too.
            classes: which logits belong to the task, in a model of several heads; None: all. Labels must be among them.
            logits: a function (model, x) → z for this task, in place of the memory's own.
            generator: draws the examples. None: a generator seeded by torch's seed and the size of the memory.

        Raises:
            BudgetExceeded: if the task does not fit the budget. Nothing is stored then.
            ValueError: if rehearsal could not protect the outputs, or an argument or the data are not as described.

        Examples:
            >>> memory = ExampleMemory(nn.Linear(4, 3), per_task=6)
            >>> memory.remember((torch.randn(20, 4), torch.arange(20) % 3), choose="balanced")
            >>> memory.task_sizes
            (6,)
        """
        count = self.per_task if per_task is None else per_task
        check_optional_count("per_task", count)
        check_choice(choose, count)
        check_merge(merge, count)
        check_classes(classes)
        check_logits(logits)
        check_generator(generator)
        if self._shared and merge != 1:
            raise ValueError(f"merge={merge} is for one process: with several ranks use merge=1")
        self._check_parameters()
        check_model(self.model, self._parameters.named())  # a frozen model may be unfrozen later
        if self.observed:
            raise ValueError("this memory keeps a stream (observe): use another memory to remember tasks")
        self._settle_and_check()
        new = NewTask(data, None if count is None else int(count), self._generator(generator), choose, int(merge))
        new = replace(new, classes=classes, logits=logits, shared=self._shared)
        self._example_kind.check_task(new)
        with self._remembering():
            params = self._parameters.trainable()
            examples = self._example_kind.with_task(self._examples_here(), new, params)
            draws = common_generator(new.generator) if self._shared else new.generator
            examples = self._example_kind.measured(self._within_budget(examples, draws), params)
            if not len(self):
                self.seed = torch_seed(self._shared)
            self._replace(examples)
            self._had_protected_step = False

    def protect(
        self,
        optimizer: Optimizers,
        every: int = defaults.REHEARSAL_EVERY,
        *,
        batch_size: int = defaults.REHEARSAL_BATCH,
        alpha: float = defaults.REHEARSAL_ALPHA,
        labels: bool = True,
        bound: float | None = defaults.REHEARSAL_BOUND,
    ) -> Rehearsal:
        """Rehearse kept examples in the optimizer's steps from now on.

        Every k-th step adds k times the gradient of the remembered loss of a batch from memory to `.grad`, after
        gradients were clipped or unscaled. It stays in `.grad` until you set it to zero.

            ℓ = alpha · h(mean (z − z_remembered)²) + cross-entropy(z, label)

        For classes h grows linearly where outputs have moved by more than 0.5; for other outputs h(m) = m. If the model
        has gained outputs since, the first term is over the remembered outputs. With what is added, the gradient is at
        most `bound` times as long as the longest that the optimizer has recently found in `.grad`. In a
        memory with loss= this loss is the second term, and the first is over the outputs that outputs= names.

        Args:
            optimizer: an optimizer, a wrapper with one as its `.optimizer`, or several that step in turn.
            every: how many steps share one rehearsal.
            batch_size: how many examples are rehearsed at a time.
            alpha: the weight of the first term, the change of the outputs.
            labels: whether to add the second term, the cross-entropy or the loss.
            bound: the largest norm of the gradient with what is added, as a multiple of the largest recent norm of the
                step's own gradients. With SGD, what is added is also small enough not to overshoot. None: no bound; a
                high learning rate may then destroy the model.

        Returns:
            The rehearsal. As a context manager it ends with its block; otherwise it lasts until `unprotect`.
            `rehearsal.loss` is the remembered loss of the last batch.

        Raises:
            ValueError: if the optimizer cannot be protected, or holds no protected parameter.

        Examples:
            >>> model = nn.Linear(4, 3)
            >>> optimizer, memory = torch.optim.Adam(model.parameters()), ExampleMemory(model)
            >>> memory.protect(optimizer, every=4, batch_size=64)
            Rehearsal(Adam, every=4, batch_size=64)
        """
        check_every(every, auto=False)
        check_count("batch_size", batch_size)
        check_loss_weights(alpha, labels)
        self._example_kind.check_weights(alpha, labels)
        check_bound(bound)
        optimizers = self._protectable(optimizer)
        resumed = self._take_resumed(len(optimizers))
        rehearsal = self._begin(Rehearsal(self, optimizers, every, batch_size, alpha, labels, bound, resumed))
        self._training_pass.watch(self.model)
        return rehearsal

    def observe(self, x: Any, y: Any = None) -> None:
        """Keep a uniform draw of a stream without tasks, given its next batch.

        Call it in your loop, with the batch that you train on. At most `per_task` examples are kept (a reservoir), each
        with the model's outputs at the time it entered. A memory keeps a stream or tasks, not both.

        Args:
            x: the inputs of the batch.
            y: the labels; None if there are none.

        Raises:
            ValueError: if the memory holds tasks, has per_task=None, or is shared by several ranks.

        Examples:
            >>> memory = ExampleMemory(nn.Linear(4, 3), per_task=8)
            >>> for _ in range(5):
            ...     memory.observe(torch.randn(6, 4), torch.zeros(6).long())
            >>> memory.task_sizes, memory.observed
            ((8,), 30)
        """
        if not isinstance(self._example_kind, Pairs) or not isinstance(self.examples, Examples):
            raise ValueError(
                "observe is for batches (x, y), and this memory has a loss=: remember tasks, a list of items"
            )
        if self.per_task is None:
            raise ValueError(
                "per_task=None would keep a whole stream, which has no end: give the memory a number, per_task=200"
            )
        if self._shared:
            raise ValueError("observe is for one process: with several ranks remember tasks, or use distributed=False")
        if self.shrink:
            raise ValueError("shrink=True is for tasks: a stream keeps at most per_task examples; leave shrink= out")
        if len(self) and not self.observed:
            raise ValueError("this memory holds tasks: use another memory to observe a stream")
        self._check_parameters()
        check_model(self.model, self._parameters.named())
        chunk = as_pair((x, y))
        n = length(chunk)
        draws = seeds.generator(self.seed, "stream", self.observed)
        stay, enter = reservoir(len(self), self.observed, n, self.per_task, draws)
        if not enter:
            self.observed += n
            return
        with self._statistics.called_modules() as called:
            params = self._parameters.trainable()
            examples = self._example_kind.with_part_of_stream(
                self._example_kind.moved(self.examples), chunk, stay, enter, params
            )
        self.budget.check(examples)
        with self._transaction():
            self._replace(examples)
            self._statistics.names = self._statistics.names | called
            self._statistics.freeze()
            self.observed += n

    def remembered_loss(
        self,
        batch_size: int = defaults.REHEARSAL_BATCH,
        *,
        alpha: float = defaults.REHEARSAL_ALPHA,
        labels: bool = True,
    ) -> Tensor | None:
        """Return the mean remembered loss of a batch drawn from memory, with its graph; None if the memory is empty.

        Use it to add the loss in your own loop instead of `protect`. With several ranks each returns its part of the
        loss; their sum is the loss.

        Args:
            batch_size: how many examples are drawn.
            alpha: the weight of the change of the outputs.
            labels: whether to add the cross-entropy of the labels.

        Examples:
            >>> model = nn.Linear(4, 3)
            >>> memory = ExampleMemory(model)
            >>> memory.remember((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
            >>> memory.remembered_loss().backward()
        """
        check_count("batch_size", batch_size)
        check_loss_weights(alpha, labels)
        self._example_kind.check_weights(alpha, labels)
        found = self._loss_of_batch(batch_size, alpha, labels)
        return None if found is None else found[0] / found[1]

    def forget(self, task: int) -> None:
        """Forget a task, so that it is no longer rehearsed. With several ranks all must call it.

        Args:
            task: the place of the task in `task_sizes`; -1 is the last task. Later tasks move up by one place.

        Raises:
            IndexError: if there is no such task.
        """
        check_task(task, len(self.task_sizes))
        self._settle_and_check()
        with self._transaction():
            self._replace(self.examples.without_task(range(len(self.task_sizes))[task]))
            self._had_protected_step = True  # the last task may now be an older one, whose outputs may have moved
            self.observed = self.observed if len(self) else 0

    def explain(
        self, data: object, *, classes: Sequence[int] | None = None, logits: Logits | None = None
    ) -> Explanation:
        """Show on some examples how `remember` would keep such data, and store nothing.

        Args:
            data: as in `remember`.
            classes: as in `remember`.
            logits: as in `remember`.

        Returns:
            The explanation; printed, it is a table.

        Examples:
            >>> _ = torch.manual_seed(0)
            >>> memory = ExampleMemory(nn.Linear(4, 3))
            >>> print(memory.explain((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))))
            kept                   bytes  stored
            input                      8  float16, in place of float32
            label                      1  uint8, in place of int64
            output                    12  float32
            together, per example     21
        """
        check_classes(classes)
        check_logits(logits)
        self._check_parameters()
        new = NewTask(data, EXPLAINED, Generator().manual_seed(0), classes=classes, logits=logits)
        self._example_kind.check_task(new)
        kept = self._example_kind.sample(new, self._parameters.trainable())
        if not len(kept):
            raise ValueError("data is empty: there is no example to explain")
        return explain_items(kept) if isinstance(kept, Items) else explain_examples(kept)

    def stats(self) -> ExampleStats:
        """Measure how far the remembered outputs of each task have moved."""
        self._check_parameters()
        if self._protections:
            self._check_moves()
        kept = self._examples_here()
        drift = tuple(self._example_kind.change(kept, kept.rows_of(t))[0] for t in range(len(self.task_sizes)))
        losses = tuple(rehearsal.loss for rehearsal in self._protections)
        bounded = tuple(r.bounded / r.rehearsals if r.rehearsals else None for r in self._protections)
        return ExampleStats(len(self), drift, losses, bounded)

    def state_dict(self) -> dict[str, Any]:
        """Return the contents of the memory, as plain values and tensors."""
        self._settle()
        # other ranks may not call it, and a sharded model would wait for them
        if self._protections and not self._shared:
            self._check_moves()
        weights = Fingerprint.of(Store(), self._parameters.named()).to_state()
        progress = [list(one) for one in self._progress]
        draws = {"seed": self.seed, "draws": self.draws, "progress": progress, "observed": self.observed}
        options = self._options() | {"shift_labels": self.shift_labels} | self._example_kind.options(self.examples)
        header = saving.header(self.kind, options, self._statistics.names, weights)
        return saving.as_leaves(header | draws | self._example_kind.state(self.examples))

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace the contents by a `state_dict`, after a try on the model; an error changes nothing.

        Args:
            stored: the result of `state_dict`.

        Raises:
            ValueError: if the state is damaged, or belongs to another model.
        """
        self._check_parameters()
        saving.check_header(stored, self.kind)
        stored = saving.from_leaves(stored)
        if ("items" in stored) != isinstance(self.examples, Items):
            raise ValueError(
                "the state comes from a memory with a loss=, and this one has none, or the reverse: give loss="
            )
        examples = self._example_kind.from_state(stored)
        seed, draws, progress, observed = _counters(stored, examples)
        weights = Fingerprint.from_state(stored.get("weights"), 0)
        self._example_kind.check_fits(examples)
        examples = self._within_budget(examples, seeds.generator(seed, "load", len(examples)))
        self._settle()
        if weights is not None and weights.differs(Store(), self._parameters.named()):
            warn_of_other_weights("its outputs are not those that are remembered")
        with self._transaction(*self._protections):
            self._statistics.restore(stored)
            self.seed, self.draws, self.observed = seed, draws, observed
            self._resumed = progress
            for rehearsal in self._protections:
                n = len(rehearsal.since)
                rehearsal.resume(self._take_resumed(n), n)
            self._replace(examples)
            self._had_protected_step = True
            if self._protections:
                self._statistics.freeze()

    def _replace(self, examples: Examples | Items) -> None:
        self.examples = examples
        for rehearsal in self._protections:
            rehearsal.reset()

    def _examples_here(self) -> Examples | Items:
        """Return the examples, where the model needs them."""
        self.examples = self._example_kind.moved(self.examples)
        return self.examples

    def _loss_of_batch(self, batch_size: int, alpha: float, labels: bool) -> tuple[Tensor, int] | None:
        """Return the summed loss of drawn examples on this rank, and their number on all ranks; None if empty."""
        drawn = self._draw(batch_size, alpha, labels)
        if drawn is None:
            return None
        parts = self._example_kind.parts(self.examples, drawn)
        with eval_mode(self.model):
            losses = [self._example_kind.loss(self.examples, part, drawn) for part in parts]
            loss = sum(losses[1:], start=losses[0]) if losses else torch.zeros((), device=device_of(self.model))
        self._check_dependent(loss.requires_grad or not losses)
        return loss, min(batch_size, len(self))

    def _gradient_of_batch(
        self, params: Sequence[Tensor], batch_size: int, alpha: float, labels: bool
    ) -> tuple[Sequence[Tensor | None], Tensor, int] | None:
        drawn = self._draw(batch_size, alpha, labels)
        if drawn is None:
            return None
        n, sharded = min(batch_size, len(self)), is_sharded(self.model)
        # the gradient of a sum may overflow
        divisor = n if sharded or any(p.dtype is torch.float16 for p in params) else 1
        numbers = self._training_pass.numbers
        if sharded:  # its ranks divide batches alike, by the size of all their training batches
            (total,) = sum_over_ranks(torch.tensor(numbers or 0))
            numbers = int(total) or None
        whole = self._example_kind.parts(self.examples, drawn)
        parts = [part for one in whole for part in self._example_kind.micro_batches(one, numbers)]

        def losses() -> Iterator[Tensor]:
            for part in parts:
                with self._training_pass.autocast(self.model):
                    loss = self._example_kind.loss(self.examples, part, drawn)
                yield loss if divisor == 1 else loss / divisor

        gradients = partial(summed_gradients if sharded else by_backward, self.model)
        with eval_mode(self.model), checkpointing(self.model):
            if sharded or self._reentrant:
                found, loss, dependent = sum_gradients(losses(), params, gradients)
            else:
                try:
                    found, loss, dependent = sum_gradients(losses(), params)
                except RuntimeError as error:
                    if "use_reentrant" not in str(error):
                        raise
                    self._reentrant = True
                    found, loss, dependent = sum_gradients(losses(), params, gradients)
        self._check_dependent(dependent or not parts)
        return found, torch.zeros((), device=device_of(self.model)) if loss is None else loss, n // divisor

    def _draw(self, batch_size: int, alpha: float, labels: bool) -> DrawnBatch | None:
        """Return the next batch to rehearse; None if the memory is empty."""
        if self._shared:
            self._check_alike()
        self._had_protected_step = True
        if not len(self._examples_here()):
            return None
        number, self.draws = self.draws, self.draws + 1
        return DrawnBatch(self.seed, number, batch_size, alpha, labels, self._shared)

    def _check_dependent(self, dependent: bool) -> None:
        if not dependent and self._parameters.trainable():
            raise ValueError(
                "the remembered outputs do not depend on any trainable parameter, so rehearsal cannot protect them: "
                "check logits=, and look for .detach() or no_grad in the model"
            )

    def _reference_losses(self, alpha: float, labels: bool) -> tuple[float, float]:
        """Return the remembered loss per example at the remembered outputs, and that of constant outputs."""
        return self._example_kind.reference_losses(self._examples_here(), alpha, labels)

    def _protected_among(self, params: Sequence[Tensor]) -> Sequence[Tensor]:
        return params if self.params is None else list(self._parameters.among(params).values())

    def _settle(self) -> None:
        self._had_protected_step |= any(p.stepped for p in self._protections)
        super()._settle()
        if not self._protections:
            self._training_pass.release()

    def _end(self, *ending: Protection) -> None:
        self._had_protected_step |= any(protection.stepped for protection in ending)
        super()._end(*ending)
        if not self._protections:
            self._training_pass.release()

    def _check_moves(self) -> None:
        self._had_protected_step |= any(p.stepped for p in self._protections)
        if self._had_protected_step or self._warned_of_moves or not len(self):
            return
        kept = self._examples_here()
        moved, size = self._example_kind.change(
            kept, kept.rows_of(len(self.task_sizes) - 1)[-self._example_kind.sampled :]
        )
        if abs(moved) > size * max(ROUNDING.get(p.dtype, ROUNDING_ELSE) for p in self.model.parameters()):
            self._warn_of_moves()

    def _check_alike(self) -> None:
        if self._alike is not self.examples:
            words = f"{len(self):,} examples in {self.nbytes:,} bytes"
            check_same(lambda: (self.examples.fingerprint, words))
            self._alike = self.examples


def _counters(stored: Mapping[str, Any], examples: Examples | Items) -> tuple[int, int, list[tuple[int, float]], int]:
    """Return the seed, the number of drawn batches, the progress of the optimizers and the size of the stream."""
    try:
        seed, draws, observed = (whole_number(stored[key]) for key in ("seed", "draws", "observed"))
        progress = [(whole_number(since), number(norm, "the recent norm", 0)) for since, norm in stored["progress"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
    if observed and (len(examples.examples_of_tasks) > 1 or observed < len(examples)):
        raise ValueError("the state is malformed: `observed` counts a stream, but the examples belong to tasks")
    return seed, draws, progress, observed
