"""class ExampleMemory: keep a few examples with the model's outputs, and protect these outputs by rehearsal."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.utils.data import default_collate

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
from ogd.memory.changes.other_weights import SAMPLED_ROWS, Fingerprint, warn_of_other_weights
from ogd.memory.data.batches import CHUNK_BYTES, CHUNK_SIZE, Chunk, as_pair, length
from ogd.memory.data.budget import Budget
from ogd.memory.data.calling import Logits, ScoredModel, as_inputs, scores
from ogd.memory.data.distributed_sampling import all_examples
from ogd.memory.data.items import Collate, draw_items
from ogd.memory.data.sampling import Sample
from ogd.memory.examples.clustering import ClusteredSample
from ogd.memory.examples.examples_state import examples_from_state, examples_state, items_from_state, items_state
from ogd.memory.examples.kept_examples import Batch, Examples, Task
from ogd.memory.examples.kept_items import Item, Items, gather_items
from ogd.memory.examples.loss import original_outputs, reference_losses, remembered_loss, squared_change
from ogd.memory.examples.prefetch import Prefetcher, draw
from ogd.memory.examples.recording import record_examples
from ogd.memory.examples.rehearsal_gradient import micro_batches, sum_gradients
from ogd.memory.examples.reservoir import reservoir
from ogd.memory.examples.user_loss import CHUNK, Loss, UserLoss, by_collate
from ogd.memory.explanation import Explanation, explain_examples, explain_items
from ogd.memory.memory import Memory, Optimizers
from ogd.memory.model.checkpointing import checkpointing
from ogd.memory.model.eval_mode import eval_mode, isolated_eval_mode
from ogd.memory.model.parameters import device_of, unwrap
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
REFERENCE = 256  # examples: enough to estimate a loss
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
        self.user_loss = None if loss is None else UserLoss(loss, collate, outputs)
        self.examples: Examples | Items = Examples() if loss is None else Items()
        self.seed = torch_seed()
        self.draws = 0  # number of rehearsed batches, which seeds the next draw
        self.observed = 0  # number of examples of the stream so far
        self._prefetcher, self._training_pass = Prefetcher(), TrainingPass()
        self._resumed: list[tuple[int, float]] = []  # `_progress` of a loaded state, for optimizers to be protected
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
        if self.user_loss is not None:
            if (choose, merge, classes, logits) != ("uniform", 1, None, None):
                raise ValueError(
                    "choose=, merge=, classes= and logits= are for pairs (x, y), and this memory has a loss="
                )
            self._remember_items(self.user_loss, data, count, self._generator(generator))
            return
        model = ScoredModel(self.model, logits or self.logits, classes)
        draws = self._generator(generator)
        drawn = None if count is None else int(count) * int(merge)
        sample = Sample(as_inputs(model.model, data), drawn, draws, CHUNK_SIZE, choose == "balanced")
        if count is not None and merge > 1:
            sample = ClusteredSample(sample, int(count))
        task = Task(None if model.classes is None else tuple(model.classes), logits)
        with self._remembering():
            chunks: Iterable[Chunk] = all_examples(sample) if self._shared else sample
            draws = common_generator(draws) if self._shared else draws
            with isolated_eval_mode(model.model), torch.no_grad():
                params, device = self._parameters.trainable(), device_of(self.model)
                new = record_examples(
                    model, params, chunks, device, expected=sample.count, shift_labels=self.shift_labels
                )
                examples = self._examples_here().with_task(new, task)
            if len(examples) == len(self):
                raise ValueError("data is empty: there is no example to remember")
            self._keep_task(self._within_budget(examples, draws))

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
        self._check_loss_weights(alpha, labels)
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
        if self.user_loss is not None:
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
        model = ScoredModel(self.model, self.logits)
        with self._statistics.called_modules() as called, isolated_eval_mode(model.model), torch.no_grad():
            params, rows = self._parameters.trainable(), torch.tensor(enter)
            device, shift_labels = device_of(self.model), self.shift_labels
            new = list(record_examples(model, params, [chunk], device, rows=rows, shift_labels=shift_labels))
        examples = self._examples_here().select(torch.tensor(stay)) if stay else Examples()
        examples = examples.with_more(new) if stay else examples.with_task(new, Task())
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
        self._check_loss_weights(alpha, labels)
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
        if self.user_loss is not None:
            with isolated_eval_mode(self.model), torch.no_grad():
                some = [Item.of(item) for item in draw_items(data, EXPLAINED, Generator().manual_seed(0))]
                if not some:
                    raise ValueError("data is empty: there is no item to explain")
                items = Items().with_task(some, self.user_loss.collate_for(data))
                return explain_items(self.user_loss.with_outputs(self.model, items, 0))
        model = ScoredModel(self.model, logits or self.logits, classes)
        sample = Sample(as_inputs(model.model, data), EXPLAINED, Generator().manual_seed(0), EXPLAINED)
        with isolated_eval_mode(model.model), torch.no_grad():
            params, device = self._parameters.trainable(), device_of(self.model)
            found = record_examples(model, params, sample, device, shift_labels=self.shift_labels)
            examples = Examples().with_task(found, Task())
        if not len(examples):
            raise ValueError("data is empty: there is no example to explain")
        return explain_examples(examples)

    def stats(self) -> ExampleStats:
        """Measure how far the remembered outputs of each task have moved."""
        self._check_parameters()
        if self._protections:
            self._check_moves()
        drift = tuple(self._output_change(self.examples.rows_of(t))[0] for t in range(len(self.task_sizes)))
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
        options = self._options() | {"shift_labels": self.shift_labels}
        header = saving.header(self.kind, options, self._statistics.names, weights)
        kept = items_state(self.examples) if isinstance(self.examples, Items) else examples_state(self.examples)
        return saving.as_leaves(header | draws | kept)

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
        if ("items" in stored) != (self.user_loss is not None):
            raise ValueError(
                "the state comes from a memory with a loss=, and this one has none, or the reverse: give loss="
            )
        examples: Examples | Items
        if self.user_loss is None:
            examples = examples_from_state(stored).to(device_of(self.model))
        else:
            examples = items_from_state(stored, self.user_loss.collate_for(None))
        seed, draws, progress, observed = _counters(stored, examples)
        weights = Fingerprint.from_state(stored.get("weights"), 0)
        self._check_fits(examples)
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

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle, which protects no optimizer."""
        return {**super().__getstate__(), "_resumed": self._progress, "_prefetcher": Prefetcher()}

    @property
    def _progress(self) -> list[tuple[int, float]]:
        """Steps since the last rehearsal, and the largest recent norm of the gradients, of each protected optimizer."""
        return [one for rehearsal in self._protections for one in rehearsal.progress] or list(self._resumed)

    def _take_resumed(self, n: int) -> list[tuple[int, float]]:
        taken, self._resumed = self._resumed[:n], self._resumed[n:]
        return taken

    def _remember_items(self, loss: UserLoss, data: object, count: int | None, draws: Generator) -> None:
        assert isinstance(self.examples, Items)
        task = len(self.task_sizes)
        with self._remembering():
            with isolated_eval_mode(self.model), torch.no_grad():
                new = [Item.of(item) for item in draw_items(data, count, draws)]
                if self._shared:
                    new, draws = gather_items(new, count, draws), common_generator(draws)
                if not new:
                    raise ValueError("data is empty: there is no item to remember")
                items = self.examples.with_task(new, loss.collate_for(data))
                items = self._within_budget(loss.with_outputs(self.model, items, task), draws)
                items = loss.measured(self.model, items, task, self._parameters.trainable())
            self._keep_task(items)

    def _keep_task(self, examples: Examples | Items) -> None:
        if not len(self):
            self.seed = torch_seed(self._shared)
        self._replace(examples)
        self._had_protected_step = False

    def _check_loss_weights(self, alpha: float, labels: bool) -> None:
        check_loss_weights(alpha, labels)
        if self.user_loss is None or self.user_loss.outputs is not None:
            return
        if not labels:
            raise ValueError("labels=False leaves the loss out, and the memory keeps no outputs: give it outputs= too")
        if alpha not in (0, defaults.REHEARSAL_ALPHA):
            raise ValueError("alpha= weighs outputs, and the memory keeps none: give it outputs=, or leave alpha= out")

    def _replace(self, examples: Examples | Items) -> None:
        self.examples, self._prefetcher = examples, Prefetcher()
        for rehearsal in self._protections:
            rehearsal.reset()

    def _examples_here(self) -> Examples:
        """Return the examples, on the device of the model."""
        assert isinstance(self.examples, Examples)
        device = device_of(self.model)
        if any(group.z.device != device for group in self.examples.groups):
            self.examples = self.examples.to(device)
        return self.examples

    def _loss_of_batch(self, batch_size: int, alpha: float, labels: bool) -> tuple[Tensor, int] | None:
        """Return the summed loss of drawn examples on this rank, and their number on all ranks; None if empty."""
        drawn = self._draw_batches(batch_size, alpha)
        if drawn is None:
            return None
        with eval_mode(self.model):
            losses = [self._loss(batch, alpha, labels) for batch in drawn]
            loss = sum(losses[1:], start=losses[0]) if losses else torch.zeros((), device=device_of(self.model))
        self._check_dependent(loss.requires_grad or not losses)
        return loss, min(batch_size, len(self))

    def _gradient_of_batch(
        self, params: Sequence[Tensor], batch_size: int, alpha: float, labels: bool
    ) -> tuple[Sequence[Tensor | None], Tensor, int] | None:
        drawn = self._draw_batches(batch_size, alpha)
        if drawn is None:
            return None
        n, sharded = min(batch_size, len(self)), is_sharded(self.model)
        # the gradient of a sum may overflow
        divisor = n if sharded or any(p.dtype is torch.float16 for p in params) else 1
        numbers = self._training_pass.numbers
        if sharded:  # its ranks divide batches alike, by the size of all their training batches
            (total,) = sum_over_ranks(torch.tensor(numbers or 0))
            numbers = int(total) or None
        parts: list[Batch | Tensor] = []
        for batch in drawn:
            parts += micro_batches(batch, numbers) if isinstance(batch, Batch) else [batch]

        def losses() -> Iterator[Tensor]:
            for part in parts:
                with self._training_pass.autocast(self.model):
                    loss = self._loss(part, alpha, labels)
                yield loss if divisor == 1 else loss / divisor

        with eval_mode(self.model), checkpointing(self.model):
            found, loss, dependent = sum_gradients(losses(), params, self.model if sharded else None)
        self._check_dependent(dependent or not parts)
        return found, torch.zeros((), device=device_of(self.model)) if loss is None else loss, n // divisor

    def _check_dependent(self, dependent: bool) -> None:
        if not dependent and self._parameters.trainable():
            raise ValueError(
                "the remembered outputs do not depend on any trainable parameter, so rehearsal cannot protect them: "
                "check logits=, and look for .detach() or no_grad in the model"
            )

    def _draw_batches(self, batch_size: int, alpha: float) -> Sequence[Batch | Tensor] | None:
        """Return this rank's part of the next batch, one batch per form or the rows of items; None if it is empty."""
        if self._shared:
            self._check_alike()
        self._had_protected_step = True
        if not len(self):
            return None
        if not alpha and self.user_loss is None and not any(group.labelled for group in self._examples_here().groups):
            raise ValueError("alpha=0 rehearses only labels, and no labels are kept: give alpha= a weight, such as 0.5")
        number, self.draws = self.draws, self.draws + 1
        return self._rows_of_items(number, batch_size) if self.user_loss else list(self._batches(number, batch_size))

    def _rows_of_items(self, number: int, size: int) -> list[Tensor]:
        """Return the items of this rank's part of batch `number`; nothing if its part is empty.

        Of a sharded model return all items, one part per collate function: `_loss` divides each.
        """
        assert isinstance(self.examples, Items)
        rows = draw(self.seed, number, len(self), size)
        if is_sharded(self.model):
            return by_collate(self.examples, rows)
        rows = rows[dist.get_rank() :: dist.get_world_size()] if self._shared else rows
        return [rows] if len(rows) else []

    def _batches(self, number: int, size: int) -> Iterable[Batch]:
        """Return this rank's part of batch `number`, one batch per form; it may be empty. Ranks share a model's shards.

        All ranks of a sharded model must call it equally often: they get the whole batch, and `_loss` divides it.
        """
        examples = self._examples_here()
        if examples.same_form and not self._shared:
            return [self._prefetcher.batch(examples, self.seed, number, size)]
        rows = draw(self.seed, number, len(self), size)
        divided = self._shared and not is_sharded(self.model)
        return examples.batches(rows[dist.get_rank() :: dist.get_world_size()] if divided else rows)

    def _loss(self, batch: Batch | Tensor, alpha: float, labels: bool) -> Tensor:
        """Return the summed loss of a batch; of a sharded model, of this rank's share.

        A rank without a share computes that of another times 0.
        """
        if not is_sharded(self.model):
            return self._loss_of_share(batch, alpha, labels)
        shares, r = batch.split(-(-len(batch) // dist.get_world_size())), dist.get_rank()
        loss = self._loss_of_share(shares[min(r, len(shares) - 1)], alpha, labels)
        return loss if r < len(shares) else 0 * loss

    def _loss_of_share(self, batch: Batch | Tensor, alpha: float, labels: bool) -> Tensor:
        if isinstance(batch, Batch):
            return remembered_loss(self._outputs(batch), batch, alpha, labels)
        assert self.user_loss is not None
        assert isinstance(self.examples, Items)
        seed = seeds.number(self.seed, "loss", self.draws - 1, dist.get_rank() if self._shared else 0)
        return self.user_loss.remembered_loss(self.model, self.examples, batch, alpha, labels, seed)

    def _outputs(self, batch: Batch) -> Tensor:
        logits = batch.logits or self.logits
        return scores(unwrap(self.model) if logits is None else self.model, batch.x, logits)

    def _reference_losses(self, alpha: float, labels: bool) -> tuple[float, float]:
        """Return the remembered loss per example at the remembered outputs, and that of constant outputs."""
        if isinstance(self.examples, Items):  # what is the loss of a constant model is not known
            return sum(item.loss for item in self.examples.items) / len(self), math.inf
        rows = torch.linspace(0, len(self) - 1, min(len(self), REFERENCE)).round().long()
        found = [reference_losses(batch, alpha, labels) for batch in self._examples_here().batches(rows)]
        return sum(start for start, _ in found) / len(rows), sum(constant for _, constant in found) / len(rows)

    def _protected_among(self, params: Sequence[Tensor]) -> Sequence[Tensor]:
        return params if self.params is None else list(self._parameters.among(params).values())

    def _output_change(self, rows: Tensor) -> tuple[float, float]:
        """Return the root mean square of the change of some examples' outputs, and of the outputs; or of the loss."""
        change, size, n = 0.0, 0.0, 0
        if isinstance(self.examples, Items) and self.user_loss is not None:
            with isolated_eval_mode(self.model), torch.no_grad():
                return self.user_loss.change(self.model, self.examples, rows)
        with isolated_eval_mode(self.model), torch.no_grad():
            for some in rows.split(CHUNK_SIZE):
                for batch in self._examples_here().batches(some):
                    for part in batch.split(max(CHUNK_BYTES // (4 * math.prod(batch.z.shape[1:])), 1)):
                        moved, squares, numbers = squared_change(self._outputs(part), part)
                        change, size, n = change + moved, size + squares, n + numbers
        return (change / max(n, 1)) ** 0.5, (size / max(n, 1)) ** 0.5

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
        sampled = SAMPLED_ROWS if self.user_loss is None else CHUNK
        moved, size = self._output_change(self.examples.rows_of(len(self.task_sizes) - 1)[-sampled:])
        if abs(moved) > size * max(ROUNDING.get(p.dtype, ROUNDING_ELSE) for p in self.model.parameters()):
            self._warn_of_moves()

    def _check_alike(self) -> None:
        if self._alike is not self.examples:
            words = f"{len(self):,} examples in {self.nbytes:,} bytes"
            check_same(lambda: (self.examples.fingerprint, words))
            self._alike = self.examples

    def _options(self) -> dict[str, Any]:
        if self.user_loss is None:
            return super()._options()
        given = {"loss": True, "outputs": self.user_loss.outputs is not None}
        collates = [self.user_loss.collate] if self.user_loss.collate else getattr(self.examples, "collates", ())
        return super()._options() | given | {"collate": any(collate is not default_collate for collate in collates)}

    def _check_fits(self, examples: Examples | Items) -> None:
        """Raise a ValueError unless the model accepts an example of each form, or some items of each task."""
        if isinstance(examples, Items):
            assert self.user_loss is not None
            with isolated_eval_mode(self.model), torch.no_grad():
                for task in range(len(examples.collates)):
                    try:
                        self.user_loss.change(self.model, examples, examples.rows_of(task)[-CHUNK:])
                    except Exception as error:
                        raise ValueError(
                            f"the memory belongs to another model: loss= or outputs= fails on a stored item ({error})"
                        ) from error
            return
        with isolated_eval_mode(self.model), torch.no_grad():
            for group in examples.groups:
                batch = group.batch(torch.zeros(1, dtype=torch.long, device=group.z.device), examples.tasks)
                try:
                    original_outputs(self._outputs(batch), batch.z)
                except Exception as error:
                    raise ValueError(
                        f"the memory belongs to another model: this one fails on a stored example ({error})"
                    ) from error


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
