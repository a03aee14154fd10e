"""class GradientMemory: keep gradients of a model's outputs, and protect these outputs by projection."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from ogd import defaults, seeds
from ogd.checks import whole_number
from ogd.memory import saving
from ogd.memory.arguments import (
    Choice,
    check_choice,
    check_classes,
    check_dtype,
    check_every,
    check_flag,
    check_generator,
    check_logits,
    check_optional_count,
    check_outputs,
    check_softness,
    check_task,
    check_update,
)
from ogd.memory.changes.binding import Binding
from ogd.memory.changes.drift import Drift, rms_by_task
from ogd.memory.changes.other_weights import Fingerprint, outputs_moved, warn_of_other_weights
from ogd.memory.data.batches import CHUNK_SIZE
from ogd.memory.data.budget import Budget
from ogd.memory.data.calling import Logits, as_inputs
from ogd.memory.data.sampling import Sample
from ogd.memory.explanation import Explanation, explain_gradients
from ogd.memory.gradients.finished_task import store_with_divided_task, store_with_shared_task, store_with_task
from ogd.memory.gradients.outputs import ChosenOutputs, Outputs
from ogd.memory.memory import Memory, Optimizers
from ogd.memory.model.parameters import plain_names
from ogd.memory.model.supported import check_model
from ogd.memory.model.weight_reads import WeightReads
from ogd.memory.optimizers.projection_hooks import Projection
from ogd.memory.optimizers.protectable import warn_of_averages
from ogd.memory.optimizers.step_hooks import Protection, versions
from ogd.memory.projection.projector import DIRECT, Projector, projector_of, remaining_share
from ogd.memory.projection.sharding import check_same_store, divided, divided_store, sharded_store, whole_store
from ogd.memory.projection.store import Store
from ogd.memory.projection.store_state import store_from_state, store_state
from ogd.memory.ranks.collective import common_generator, torch_seed
from ogd.memory.ranks.sharded_parameters import is_cut_once, is_sharded, local, local_parts, reshard
from ogd.memory.stats import GradientStats
from ogd.tensor_files import dtype_name

EARLY = 20  # windows that end early before a warning says what that costs


class GradientMemory(Memory):
    """Gradients of a model's outputs on finished tasks, which protect these outputs by projection: the paper's OGD.

    From the first remembered task on, each step of a protected optimizer moves the weights only where, to first order,
    no remembered output changes. With the stored gradients as the rows of G,

        Δw ← P Δw,    P = I − Gᵀ K⁺ G,    K = G Gᵀ.

    With a softness μ > 0 remembered outputs may move a little where that leaves more of the step. Of all v,

        P Δw minimises  ½ |v − Δw|² + Σ_i (g_i · v)² / (2μ |g_i|²),    P = I − Gᵀ (K + μ diag K)⁻¹ G.

    In bfloat16 this is true only up to the rounding of the weights, a hundredth or more of each step.

    The defaults were chosen on validation data. The paper's setting is `per_task=200` and `softness=0`, and
    `protect(optimizer, every=1)`.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> memory = GradientMemory(model, per_task=2)
        >>> projection = memory.protect(optimizer)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> memory.remember((x, y))
        >>> memory
        GradientMemory(2 directions of 1 task, 56 bytes; protects 15 numbers in 2 parameters of Linear; outputs='true')

    Args:
        model: any module. Its parameters have their plain names, without the prefixes of `torch.compile` or DDP.
        per_task: how many examples of a task are remembered; None for all. Each example takes one direction for each
            of its kept outputs.
        outputs: which outputs of an example are kept: "true" (the logit of its label, OGD-GTL), "mean" (the mean
            logit, OGD-AVE), "all" (each logit, OGD-ALL) or a function of the logits z (B, C) and the labels,
            (z, y) → (B,) or (B, k).
        softness: μ, how softly steps are projected. 0: no remembered output changes, to first order, as in the paper.
            0.05 leaves more room to learn where hundreds of gradients per task are stored.
        logits: a function (model, x) → z that computes the logits. None: they are model(x), model(*x) or model(**x),
            whichever fits the model's forward, or the `.logits` of its result.
        params: which parameters are protected: names, prefixes of names ("encoder") or parameters. None: all
            trainable parameters, including those added to the model later. A task does not protect a parameter that is
            frozen while the task is remembered.
        budget: the largest number of directions, or of bytes ("64MB"), that may be stored; None: no limit.
        shrink: whether old tasks lose examples when a new task does not fit the budget, until all tasks have equal
            shares, as far as possible. False: raise `BudgetExceeded`.
        freeze_buffers: whether buffers that a forward pass would change (BatchNorm's running statistics) are frozen
            from the first remembered task on; such layers then use them in training too. False: they change, and
            remembered outputs drift with them.
        chunk_size: how many examples are differentiated at a time; None: the number that fits 256 MiB.
        dtype: the type in which gradients are stored; None: that of the parameters. torch.bfloat16 takes half the
            bytes, but because of its rounding updates change remembered outputs a little (docs/speed.md).
        sharded: whether each rank of torch.distributed keeps only its share of the stored gradients.
        distributed: whether the ranks share one memory. False: each rank has its own memory, for its own model.
    """

    kind = "gradients"

    def __init__(
        self,
        model: nn.Module,
        per_task: int | None = defaults.GRADIENTS,
        *,
        outputs: Outputs = "true",
        softness: float = 0.0,
        logits: Logits | None = None,
        params: Iterable[str | nn.Parameter] | None = None,
        budget: int | str | Budget | None = None,
        shrink: bool = False,
        freeze_buffers: bool = True,
        chunk_size: int | None = None,
        dtype: torch.dtype | None = None,
        sharded: bool = False,
        distributed: bool = True,
    ):
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
        check_outputs(outputs)
        check_softness(softness)
        check_optional_count("chunk_size", chunk_size)
        check_dtype(dtype)
        check_flag("sharded", sharded)
        self.outputs, self.softness, self.dtype, self.sharded = outputs, float(softness), dtype, sharded
        self.chunk_size = None if chunk_size is None else int(chunk_size)
        self.store = Store()
        self._binding = Binding(self._parameters)
        self._drift = Drift()
        self._alike: Store | None = None  # the last store that was found equal on all ranks
        self._warned_of_dropped = False  # dropped gradients protect nothing
        self._reads = WeightReads()
        self._warned_of_reads = False
        self._early = 0  # windows in a row that ended after one or two steps, because the model was read

    def __len__(self) -> int:
        """Return the number of stored directions, the rows of G."""
        return len(self.store)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """The number of directions of each remembered task."""
        return self.store.tasks

    @property
    def nbytes(self) -> int:
        """The bytes of the stored gradients, about the size of a saved file; if sharded, only this rank's."""
        return self.store.nbytes

    @property
    def resident_nbytes(self) -> int:
        """The bytes in use: the gradients, and K and the projectors, which are derived from them."""
        projectors = sum(projector.nbytes for projector in self._projectors())
        return self.store.nbytes + self.store.derived_nbytes + projectors

    @property
    def rank(self) -> int:
        """The number of independent directions among the stored ones."""
        return self.store.rank

    def __repr__(self) -> str:
        tasks = f"{len(self.task_sizes)} task{'' if len(self.task_sizes) == 1 else 's'}"
        numbers, parameters = self._trainable_numbers()
        return (
            f"{type(self).__name__}({len(self):,} directions of {tasks}, {self.nbytes:,} bytes; protects {numbers:,} "
            f"numbers in {parameters} parameters of {type(self.model).__name__}; outputs={self.outputs!r})"
        )

    def remember(
        self,
        data: object,
        *,
        per_task: int | None = None,
        choose: Choice = "uniform",
        classes: Sequence[int] | None = None,
        logits: Logits | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Store the gradients of a finished task at the model's present weights.

        Gradients are computed in evaluation mode, because the batch statistics of training mode would couple the
        examples. The model's modes, buffers, gradients and hooks and the random state are restored. With several ranks
        of torch.distributed all must call it, each with its part of the data or all with the same data.

        Args:
            data: a DataLoader, a Dataset, tensors, or a list of batches or examples. A batch is a pair (x, y), where x
                may be a tuple, list or dict of tensors; a triple (x, y, task); inputs and labels (a, b, y); a dict with
                the key "labels"; or inputs without labels, such as the dict that a tokenizer gives.
            per_task: how many examples of this task are remembered; None: the memory's own number.
            choose: how the examples are drawn. "uniform": every example is equally likely. "balanced": equal numbers
                of each label, as far as possible; this reads all of the data.
            classes: which logits belong to the task, in a model of several heads; None: all. "mean" and "all" use only
                these; for "true" the labels must be among them.
            logits: a function (model, x) → z for this task, in place of the memory's own.
            generator: draws the examples. None: a generator seeded by torch's seed and the size of the memory.

        Raises:
            BudgetExceeded: if the task does not fit the budget. Nothing is stored then.
            ValueError: if the model cannot be remembered, or an argument or the data are not as described.

        Examples:
            >>> memory = GradientMemory(nn.Linear(4, 3), per_task=6, outputs="all")
            >>> memory.remember((torch.randn(20, 4), torch.arange(20) % 3), choose="balanced")
            >>> memory.task_sizes
            (18,)
        """
        count = self.per_task if per_task is None else per_task
        check_optional_count("per_task", count)
        check_choice(choose, count)
        check_classes(classes)
        check_logits(logits)
        check_generator(generator)
        self._check_parameters()
        self._follow_model()
        params = self._parameters.trainable()
        check_model(self.model, params)
        self._settle_and_check()
        chosen = ChosenOutputs(self.model, self.outputs, logits or self.logits, classes)
        draws, size = self._generator(generator), self.chunk_size or CHUNK_SIZE
        sample = Sample(as_inputs(self.model, data), count, draws, size, choose == "balanced", self.outputs == "true")
        with self._remembering(), self._reads.entry(self.model):
            how = (chosen, params, sample, self.chunk_size, self.dtype)
            if is_sharded(self.model):
                store = store_with_divided_task(self.store, *how)
                draws = common_generator(draws)
            elif self._shared:
                store = store_with_shared_task(self.store, *how, self.sharded)
                draws = common_generator(draws)
            else:
                store = store_with_task(self.store, *how)
            new = store.tasks[-1]
            store = self._within_budget(store, draws)
            self._drift.add_task(self.store, store, self._shards(), new)
            self._replace(store)
        if self._reads.watching:
            self._reads.watch(self.model, self)

    def protect(self, optimizer: Optimizers, every: int | Literal["growing", "auto"] = "growing") -> Projection:
        """Project the optimizer's steps from now on, so that they do not change remembered outputs.

        The displacement Δw of some steps becomes P Δw: to first order, no remembered output changes. In between the
        weights are not projected. Pending steps are projected before the model is evaluated (called in evaluation mode
        or without gradients), before its `state_dict` and `load_state_dict`, and by the memory's own methods. Call
        `settle` before you use the weights in another way, for example to copy or to average them, and where several
        ranks share the memory or the model is compiled; there a warning says so once.

        Only trainable parameters of this optimizer are moved. If several optimizers train one model, each of them alone
        keeps the remembered outputs; given as a list they do so together, which restricts them less.

        Args:
            optimizer: an optimizer, a wrapper with one as its `.optimizer`, or several that step in turn, such as
                `{parameter: optimizer}` for optimizers that step in the backward pass.
            every: how many steps share one projection. "growing": a tenth of the steps since the last task was
                remembered, at least 10 and at most 300. 1: each step is projected, as in the paper. "auto": projections
                cost 2 % of training, by measured times; the hooks add a few percent to very short steps. That depends
                on the machine, so two runs may differ in the last bits. `projection.every` is the present choice.

        Returns:
            The projection. As a context manager it ends with its block; otherwise it lasts until `unprotect`.

        Raises:
            ValueError: if the optimizer cannot be protected, or holds no protected parameter.

        Examples:
            >>> model = nn.Linear(4, 3)
            >>> optimizer, memory = torch.optim.Adam(model.parameters()), GradientMemory(model)
            >>> memory.protect(optimizer, every=10)
            Projection(Adam, every=10, 0 steps pending)
        """
        check_every(every, auto=True)
        self._check_parameters()
        self._follow_model()
        optimizers = self._protectable(optimizer)
        if warn_of_averages(optimizers):
            self._warned_of_moves = True
        projection = Projection(self, optimizers, every, alone=not self.distributed)
        projection.steps = sum(self._take_resumed(1))
        self._begin(projection)
        if every != 1:
            self._reads.watch(self.model, self)
        return projection

    def project(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return P u for an update u by parameter names, for an optimizer of your own.

        Parameters that are not in `update` count as fixed. Updates of unprotected parameters are returned unchanged.

        Args:
            update: a tensor for each parameter to move, by name.

        Returns:
            The projected update, by the same names.

        Raises:
            TypeError: if `update` is no dictionary of dense floating-point tensors.
            ValueError: if a name or a shape is not the model's, or a number is not finite.

        Examples:
            >>> model = nn.Linear(2, 1, bias=False)
            >>> memory = GradientMemory(model, outputs="all")
            >>> memory.remember((torch.tensor([[1.0, 0.0]]), None))
            >>> memory.project({"weight": torch.tensor([[3.0, 4.0]])})
            {'weight': tensor([[0., 4.]])}
        """
        self._check_parameters()
        plain = plain_names(self.model)
        check_update(update, self._parameters.named() | dict(self.model.named_parameters()))
        self._follow_model()
        result = {name: u.detach().clone() for name, u in update.items()}
        plain_update = {plain.get(name, name): u for name, u in result.items()}
        protected = {name: local(u) for name, u in plain_update.items() if name in self._parameters}
        projector = projector_of(self.store, protected, self.softness)
        if projector is not None:
            ours = [protected[name] for name in projector.names]
            projector.remove(ours, [-u for u in ours])
        return result

    def forget(self, task: int) -> None:
        """Remove the directions of a task, so that its outputs may change. With several ranks all must call it.

        Args:
            task: the place of the task in `task_sizes`; -1 is the last task. Later tasks move up by one place.

        Raises:
            IndexError: if there is no such task.

        Examples:
            >>> model = nn.Linear(4, 3)
            >>> memory = GradientMemory(model)
            >>> for n in (5, 2):
            ...     memory.remember((torch.randn(n, 4), torch.zeros(n).long()))
            >>> memory.forget(0)
            >>> memory.task_sizes
            (2,)
        """
        check_task(task, len(self.task_sizes))
        self._settle_and_check()
        with self._transaction():
            self._replace(self.store.without_task(range(len(self.task_sizes))[task]), bind=False)
            self._drift.reset(self.store, self._shards())

    def explain(
        self, data: object, *, classes: Sequence[int] | None = None, logits: Logits | None = None
    ) -> Explanation:
        """Show on two examples how `remember` would store such data, layer by layer, and store nothing.

        Args:
            data: as in `remember`.
            classes: as in `remember`.
            logits: as in `remember`.

        Returns:
            The explanation; printed, it is a table.

        Examples:
            >>> memory = GradientMemory(nn.Linear(4, 3))
            >>> print(memory.explain((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))))
            parameters               bytes  stored
            weight + bias               28  factored: 1 outer product per direction
            together, per direction     28
        """
        check_classes(classes)
        check_logits(logits)
        self._check_parameters()
        if is_sharded(self.model):
            raise ValueError("explain is for whole parameters: call it before fully_shard")
        chosen = ChosenOutputs(self.model, self.outputs, logits or self.logits, classes)
        examples = next(iter(Sample(as_inputs(self.model, data), 2, Generator().manual_seed(0), 2)), None)
        if examples is None:
            raise ValueError("data is empty: there is no example to explain")
        return explain_gradients(chosen, self._parameters.trainable(), examples, self.dtype)

    def stats(self) -> GradientStats:
        """Measure how much of the updates projection keeps, the free dimensions, and the drift of remembered outputs.

        Pending steps are projected first; with several ranks call `settle` before, on all of them.
        """
        self._check_parameters()
        self._follow_model()
        self._before_reading("measured")
        if self._protections:
            self._check_moves()
        drift = rms_by_task(self._drift.now(self.store, self._shards()), self.task_sizes)
        shares = tuple(remaining_share(each.last) for each in self._projectors() if each.last is not None)
        rank = self.rank if len(self) <= DIRECT else None
        return GradientStats(shares, len(self), rank, self._trainable_numbers()[0], drift)

    def state_dict(self) -> dict[str, Any]:
        """Return the contents of the memory, as plain values and tensors; project pending steps first.

        If the memory is sharded, all ranks must call it, also `save`, `load_state_dict`, `forget`, `settle`, `rank`.
        """
        self._follow_model()
        self._settle_and_check()
        params = self._parameters.named()
        store = whole_store(self.store, params)
        weights = Fingerprint.of(store, {name: params[name] for name in store.shapes}).to_state()
        header = saving.header(self.kind, self._options(), self._statistics.names, weights)
        return saving.as_leaves(header | {"progress": self._progress} | store_state(store))

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace the contents by a `state_dict`, checked against the model; an error changes nothing.

        The model must have the weights of that time, or weights trained under protection since: stored gradients
        protect the outputs at these weights. A warning tells if the weights differ.

        Args:
            stored: the result of `state_dict`.

        Raises:
            ValueError: if the state is damaged, or belongs to another model.
        """
        self._check_parameters()
        saving.check_header(stored, self.kind)
        stored = saving.from_leaves(stored)
        whole = store_from_state(stored, self._parameters.named())
        if whole.shapes and not any(name in self._parameters for name in whole.shapes):
            raise ValueError(f"params={self.params} protects none of the parameters with stored gradients")
        weights, progress = Fingerprint.from_state(stored.get("weights"), len(whole)), _progress(stored)
        # ranks draw the same numbers without an exchange
        n = len(whole)
        draws = seeds.generator("load", n) if self._shared else seeds.generator(torch_seed(), "remember", n)
        store = self._within_budget(whole, draws)
        self._settle()
        params = self._parameters.named()
        if weights is not None and weights.differs(whole, {name: params[name] for name in whole.shapes}, self.softness):
            warn_of_other_weights("stored gradients do not protect its outputs")
        if self.sharded and self._shared:
            check_same_store(store)
            store = sharded_store(store)
        if is_sharded(self.model):
            check_same_store(store)
            store = divided_store(store, params)
        with self._transaction(*self._protections):
            self._statistics.restore(stored)
            self._drift.reset(store, self._shards())
            self._replace(store)
            self._resumed = progress
            for projection in self._protections:
                projection.steps = sum(self._take_resumed(1))
            self._versions = versions(params.values())
            if self._protections:
                self._statistics.freeze()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not is_sharded(self.model):
            return
        if self.sharded:
            raise ValueError("sharded=True is for whole parameters: fully_shard divides G already, so leave it out")
        whole = [name for name, p in self._parameters.trainable().items() if not is_cut_once(p)]
        if whole:
            raise ValueError(
                f"{whole[0]} is not divided among all ranks ({len(whole)} such parameters), and a GradientMemory knows "
                "fully_shard of all protected parameters over a mesh of one axis: apply it to the whole model, or "
                "choose others with params=, or use an ExampleMemory"
            )

    def _shards(self) -> dict[str, Tensor]:
        """Return this rank's parts of all parameters."""
        return local_parts(self._parameters.named())

    def _parts(self) -> tuple[object, ...]:
        return *super()._parts(), self._binding, self._drift

    def _options(self) -> dict[str, Any]:
        return super()._options() | {
            "outputs": None if callable(self.outputs) else self.outputs,
            "softness": self.softness,
            "chunk_size": self.chunk_size,
            "dtype": None if self.dtype is None else dtype_name(self.dtype),
        }

    def _replace(self, store: Store, *, bind: bool = True) -> None:
        self.store, self._resumed = store, []
        if bind:
            self._binding.bind(store.shapes)
        for projection in self._protections:
            projection.reset()

    def _follow_model(self) -> None:
        """Update the store if the model's parameters were renamed or replaced, or raise; see `Binding`."""
        bound = self._binding.tensors
        if is_sharded(self.model):
            self.store = divided(self.store)
            named = self._parameters.named()
            if any(named.get(name) is not bound[name] for name in self.store.shapes):
                raise ValueError(
                    "parameters were renamed or replaced since the last remember, which cannot be followed under "
                    "fully_shard: save the memory before such a change, and load it after"
                )
            return
        with self._transaction():
            store = self._binding.rebind(self.store)
            if self._binding.tensors is not bound:
                self._settle()
                self._drift.reset(store, self._shards())  # counted from the new tensors
            if store is not self.store:
                self._replace(store)

    def _check_moves(self) -> None:
        # inside a window the weights are not projected
        if self._warned_of_moves or any(projection.pending for projection in self._protections):
            return
        if outputs_moved(self.store, self._shards(), self._drift.weights, self.softness):
            self._warn_of_moves()

    def _projectors(self) -> list[Projector]:
        return [projection.projector for projection in self._protections if projection.projector is not None]

    def _projector_for(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        """Return P for the tensors that have stored gradients, and these tensors; None if none has."""
        self._follow_model()
        if self._alike is not self.store and self._shared:
            check_same_store(self.store)
            self._alike = self.store
        params = self._parameters.among(tensors)
        projector = projector_of(self.store, local_parts(params), self.softness)
        if projector is None:
            return None
        self._warned_of_dropped = self._warned_of_dropped or projector.check_dropped()
        return projector, [params[name] for name in projector.names]

    def _is_intact(self) -> bool:
        if self.store.sharded == "columns":
            reshard(self.model)
        return self._binding.intact()

    def _before_window(self, projection: Projection) -> None:
        """Settle other projections of the same weights, and check whether something else has moved the weights."""
        for other in self._protections:
            if projection.overlaps(other):
                other.settle()
        # checks take time: only at the 2nd, 4th, 8th, … outside change; the first may be weights that were loaded
        if projection.outside_changes > 1 and projection.outside_changes.bit_count() == 1:
            self._check_moves()
        self._reads.called = False

    def _after_common_step(self, projection: Projection) -> None:
        """Note that a step has ended, and warn if a window has steps without a call of the model."""
        self._reads.end_step(self.model.training)
        if projection.pending == 2 and self._reads.watching and not (self._reads.called or self._settled_by_framework):
            self._warn_of_reads(
                "the memory cannot notice when the model is evaluated or saved, because neither the model nor the "
                "module that `remember` called first is called in training (is it compiled, or copied by a wrapper?)"
            )

    def _before_reading(self, event: str) -> None:
        """Project pending steps before the model is read, or warn once that they cannot be projected by themselves."""
        waiting = [projection for projection in self._protections if projection.pending]
        if not waiting or any(projection.under_way() for projection in waiting):
            return
        done = f"the model was {event} while {max(p.pending for p in waiting)} steps were not projected, because "
        if self._shared:
            self._warn_of_reads(done + "all ranks must project them together")
        elif torch._C._functorch.peek_interpreter_stack() is not None:
            self._warn_of_reads(done + "they cannot be inside a transformation of torch.func")
        elif self._reads.in_training_pass:
            # a pass without gradients in training mode may belong to the loss, whose backward pass is still to come
            if event != "evaluated" or not self.model.training:
                self._warn_of_reads(done + "the last training pass was not followed by a step")
        else:
            self._early = self._early + 1 if all(p.pending <= 2 < p.every for p in waiting) else 0
            with torch.inference_mode(False):
                self._settle()
            if self._early == EARLY:
                warnings.warn(
                    f"the model was evaluated or saved after every step or two, {EARLY} times in a row, and its steps "
                    f"were projected each time: protection then costs as much as every=1. Passes without gradients "
                    "count as evaluation: if they belong to training, use a copy of the model for them",
                    stacklevel=2,
                )

    def _warn_of_reads(self, why: str) -> None:
        if not self._warned_of_reads:
            self._warned_of_reads = True
            warnings.warn(
                f"{why}: call memory.settle() after the last step, before you evaluate or save the model, or protect "
                "with every=1",
                stacklevel=3,
            )

    def _settle(self) -> None:
        super()._settle()
        if not self._protections:
            self._reads.release()

    def _end(self, *ending: Protection) -> None:
        super()._end(*ending)
        if not self._protections:
            self._reads.release()


def _progress(stored: Mapping[str, Any]) -> list[int]:
    """Return the steps of each protection since the contents of the memory changed."""
    try:
        return [whole_number(steps) for steps in stored["progress"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the state is incomplete or malformed: {error!r}") from error
