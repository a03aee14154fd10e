"""class GradientMemory: gradients of a model's outputs, which protect those outputs by projection."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from ogd import defaults, seeds
from ogd.memory import saving
from ogd.memory.arguments import (
    Choice,
    check_choice,
    check_chunk_size,
    check_classes,
    check_dtype,
    check_every,
    check_flag,
    check_generator,
    check_logits,
    check_outputs,
    check_per_task,
    check_task,
    check_update,
)
from ogd.memory.changes.binding import Binding
from ogd.memory.changes.drift import Drift, rms_by_task
from ogd.memory.changes.other_weights import Fingerprint, outputs_moved, warn_of_other_weights
from ogd.memory.data.batches import CHUNK_SIZE
from ogd.memory.data.budget import Budget
from ogd.memory.data.calling import Logits
from ogd.memory.data.sampling import Sample
from ogd.memory.explanation import Explanation, explain_gradients
from ogd.memory.gradients.finished_task import store_with_shared_task, store_with_task
from ogd.memory.gradients.outputs import ChosenOutputs, Outputs
from ogd.memory.memory import Memory, Optimizers
from ogd.memory.model.parameters import plain_names
from ogd.memory.model.supported import check_model, check_parameters
from ogd.memory.optimizers.projection import Projection
from ogd.memory.optimizers.protectable import warn_of_averages
from ogd.memory.optimizers.protection import versions
from ogd.memory.projection.projector import DIRECT, Projector, projector_of, remaining_share
from ogd.memory.projection.sharding import check_same_store, sharded_store, whole_store
from ogd.memory.projection.store import Store
from ogd.memory.projection.store_state import store_from_state, store_state
from ogd.memory.ranks.collective import common_generator, torch_seed
from ogd.memory.stats import GradientStats


class GradientMemory(Memory):
    """Gradients of a model's outputs on finished tasks, which protect those outputs by projection: the paper's OGD.

    From the first remembered task on, each step of a protected optimizer moves the weights only where, to first order,
    no remembered output changes. With the stored gradients as the rows of G,

        Δw ← P Δw,    P = I − Gᵀ K⁺ G,    K = G Gᵀ.

    In bfloat16 this holds only up to the rounding of the weights after each step, a hundredth or more of the way they
    move.

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
        model: any module. Its parameters are known by their plain names, without what `torch.compile` or DDP add.
        per_task: how many examples of a task are remembered; None for all that are given. Each takes one direction per
            output that is kept.
        outputs: which outputs of an example are kept: "true" (the logit of its label, OGD-GTL), "mean" (the mean
            logit, OGD-AVE), "all" (each logit, OGD-ALL) or a function of the logits z (B, C) and the labels,
            (z, y) → (B,) or (B, k).
        logits: a function (model, x) → z that computes the logits; None: they are model(x), model(*x) or model(**x),
            as its forward takes x, or the `.logits` of that.
        params: which parameters are protected: names, prefixes of names ("encoder") or parameters. None: all that are
            trainable, also those added to the model later. A parameter that is frozen while a task is remembered is
            left out of it, and moves freely for that task if it is trained later.
        budget: the most that may be stored: a number of directions, or bytes ("64MB"); None: no limit.
        shrink: whether old tasks give up examples when a new task does not fit the budget, until all have shares as
            equal as possible. False: raise `BudgetExceeded`.
        freeze_buffers: whether buffers that a forward pass would change (BatchNorm's running statistics) stay as they
            are from the first remembered task on; such layers use them in training too. False: they move, and
            remembered outputs drift with them.
        chunk_size: how many examples are differentiated at a time; None: as many as fit 256 MiB.
        dtype: the type in which gradients are stored; None: that of the parameters. torch.bfloat16 takes half the
            bytes, and its rounding leaves a little of each update's effect (docs/sizes.md).
        sharded: with several ranks of torch.distributed, keep on each only its share of the stored gradients.
        distributed: whether the ranks share one memory. False: each rank has its own memory, for its own model.
    """

    kind = "gradients"

    def __init__(
        self,
        model: nn.Module,
        per_task: int | None = defaults.PER_TASK,
        *,
        outputs: Outputs = "true",
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
        check_chunk_size(chunk_size)
        check_dtype(dtype)
        check_flag("sharded", sharded)
        self.outputs, self.dtype, self.sharded = outputs, dtype, sharded
        self.chunk_size = None if chunk_size is None else int(chunk_size)
        self.store = Store()
        self._binding = Binding(self._parameters)
        self._drift = Drift()
        self._alike: Store | None = None  # the last store that was seen to be the same on all ranks
        self._warned_of_dropped = False  # of gradients that protect nothing

    def __len__(self) -> int:
        """Return the number of stored directions: the rows of G."""
        return len(self.store)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """The number of directions of each remembered task."""
        return self.store.tasks

    @property
    def nbytes(self) -> int:
        """The bytes of the stored gradients, about what `save` writes; of a sharded memory those of this rank."""
        return self.store.nbytes

    @property
    def resident_nbytes(self) -> int:
        """The bytes in use: the gradients and what is derived from them, K and the projectors."""
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
            f"GradientMemory({len(self):,} directions of {tasks}, {self.nbytes:,} bytes; protects {numbers:,} numbers "
            f"in {parameters} parameters of {type(self.model).__name__}; outputs={self.outputs!r})"
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

        Gradients are taken in evaluation mode: batch statistics of training mode would couple the examples. Afterwards
        the model's modes, buffers, gradients and hooks and the random state are as they were. With several ranks of
        torch.distributed all must call it, each with its part of the data or all with the same.

        Args:
            data: a DataLoader, a Dataset, tensors, or a list of batches or examples. A batch is a pair (x, y), where x
                may be a tuple, list or dict of tensors; a triple (x, y, task); inputs and labels (a, b, y); or a dict
                with the key "labels".
            per_task: how many examples of this task are remembered; None: the memory's own number.
            choose: how they are drawn. "uniform": every example is equally likely. "balanced": equal numbers of each
                label, as far as possible; this reads all of the data.
            classes: which logits are the task's, in a model of several heads: "mean" and "all" take only these, and
                for "true" the labels must be among them. None: all.
            logits: a function (model, x) → z for this task, in place of the memory's own.
            generator: draws the examples. None: one that depends on torch's seed and on how much is stored.

        Raises:
            BudgetExceeded: if the task does not fit the budget. Nothing is stored then.
            ValueError: if the model cannot be remembered, or an argument or the data are not as described.
        """
        count = self.per_task if per_task is None else per_task
        check_per_task(count)
        check_choice(choose, Choice, count)
        check_classes(classes)
        check_logits(logits)
        check_generator(generator)
        check_parameters(self.model)
        self._follow_model()
        params = self._parameters.trainable()
        check_model(self.model, params)
        self._settle()
        self._check_moves()
        chosen = ChosenOutputs(self.model, self.outputs, logits or self.logits, classes)
        draws, size = self._generator(generator), self.chunk_size or CHUNK_SIZE
        sample = Sample(data, count, draws, size, choose == "balanced", self.outputs == "true")
        with self._remembering():
            how = (chosen, params, sample, self.chunk_size, self.dtype)
            if self._shared:
                store = store_with_shared_task(self.store, *how, self.sharded)
                draws = common_generator(draws)
            else:
                store = store_with_task(self.store, *how)
            new = store.tasks[-1]
            store = self._within_budget(store, draws)
            self._drift.add_task(self.store, store, self._parameters.named(), new)
            self._replace(store)

    def protect(self, optimizer: Optimizers, every: int | Literal["auto"] = 1) -> Projection:
        """Project the optimizer's steps from now on, so that they leave remembered outputs as they are.

        Each step's Δw becomes P Δw: the weights move only where, to first order, no remembered output changes. With
        every=k the displacement of k steps is projected at once, which costs less; in between the weights are where the
        optimizer put them, so call `settle` before you use or replace them. Only trainable parameters of this
        optimizer are moved. When several protected optimizers share a model, each of them alone leaves the remembered
        outputs as they are; given as a list they do so together, which leaves them more room.

        Args:
            optimizer: an optimizer, a wrapper with one as its `.optimizer`, or several that step in turn, such as those
                of `{parameter: optimizer}` that step in the backward pass.
            every: how many steps share one projection. "auto" measures steps and projections and chooses, so that
                projections cost 2 % of training; the hooks add a few percent to very short steps. `projection.every` is
                the present choice. It depends on the machine: two runs need not agree to the last bit.

        Returns:
            The projection, a context manager that ends it; ignore it to protect until `unprotect`.

        Raises:
            ValueError: if the optimizer cannot be protected, or holds no protected parameter.
        """
        check_every(every, auto=True)
        check_parameters(self.model)
        self._follow_model()
        optimizers = self._protectable(optimizer)
        if warn_of_averages(optimizers):
            self._warned_of_moves = True
        return self._begin(Projection(self, optimizers, every, alone=not self.distributed))

    def project(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return P u for an update u given by parameter names, for those who write their own optimizer.

        Parameters that are not in `update` count as fixed; those that are not protected pass unchanged.

        Args:
            update: a tensor for each parameter that is to move, by name.

        Examples:
            >>> model = nn.Linear(2, 1, bias=False)
            >>> memory = GradientMemory(model, outputs="all")
            >>> memory.remember((torch.tensor([[1.0, 0.0]]), None))
            >>> memory.project({"weight": torch.tensor([[3.0, 4.0]])})
            {'weight': tensor([[0., 4.]])}
        """
        check_parameters(self.model)
        plain = plain_names(self.model)
        check_update(update, self._parameters.named() | dict(self.model.named_parameters()))
        self._follow_model()
        result = {name: u.detach().clone() for name, u in update.items()}
        plain_update = {plain.get(name, name): u for name, u in result.items()}
        protected = {name: u for name, u in plain_update.items() if name in self._parameters}
        projector = projector_of(self.store, protected)
        if projector is not None:
            ours = [protected[name] for name in projector.names]
            projector.remove(ours, [-u for u in ours])
        return result

    def forget(self, task: int) -> None:
        """Forget a task, by its place in `task_sizes`: its directions are removed and its outputs may change again.

        The tasks after it move up by one place. -1 is the last one. With several ranks all must call it.

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
        self._settle()
        self._check_moves()
        with self._transaction():
            self._replace(self.store.without_task(range(len(self.task_sizes))[task]), bind=False)
            self._drift.reset(self.store, self._parameters.named())

    def explain(
        self, data: object, *, classes: Sequence[int] | None = None, logits: Logits | None = None
    ) -> Explanation:
        """Find out on two examples how `remember` would store such data, layer by layer, and store nothing.

        Args:
            data: as `remember` takes it.
            classes: as in `remember`.
            logits: as in `remember`.

        Examples:
            >>> memory = GradientMemory(nn.Linear(4, 3))
            >>> print(memory.explain((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))))
            parameters               bytes  stored
            weight + bias               28  factored: 1 outer product per direction
            together, per direction     28
        """
        check_classes(classes)
        check_logits(logits)
        check_parameters(self.model)
        chosen = ChosenOutputs(self.model, self.outputs, logits or self.logits, classes)
        examples = next(iter(Sample(data, 2, Generator().manual_seed(0), 2)), None)
        if examples is None:
            raise ValueError("data is empty: there is no example to explain")
        return explain_gradients(chosen, self._parameters.trainable(), examples, self.dtype)

    def stats(self) -> GradientStats:
        """Measure what projection does to the updates, the room that is left, and how far remembered outputs moved.

        With every=k, steps that are not projected yet count as they are: call `settle` first.
        """
        check_parameters(self.model)
        self._follow_model()
        if self._protections:
            self._check_moves()
        drift = rms_by_task(self._drift.now(self.store, self._parameters.named()), self.task_sizes)
        shares = tuple(remaining_share(each.last) for each in self._projectors() if each.last is not None)
        rank = self.rank if len(self) <= DIRECT else None
        return GradientStats(shares, len(self), rank, self._trainable_numbers()[0], drift)

    def state_dict(self) -> dict[str, Any]:
        """Return everything stored, as plain values and tensors. What is pending is projected first.

        If the memory is sharded, all ranks must call it (and `save`, `load_state_dict`, `forget`, `settle` and `rank`).
        """
        self._follow_model()
        self._settle()
        self._check_moves()
        store, params = whole_store(self.store), self._parameters.named()
        weights = Fingerprint.of(store, {name: params[name] for name in store.shapes}).to_state()
        return saving.header(self.kind, self._options(), self._statistics.names, weights) | store_state(store)

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace what is stored by a `state_dict`, checked against the model; an error changes nothing.

        The model must have the weights that it had when the state was made, or have been trained under protection
        since: stored gradients protect the outputs of these weights. A warning says if it has others.

        Args:
            stored: what `state_dict` returned.

        Raises:
            ValueError: if the state is damaged, or belongs to another model.
        """
        check_parameters(self.model)
        saving.check_header(stored, self.kind)
        whole = store_from_state(stored, self._parameters.named())
        weights = Fingerprint.from_state(stored.get("weights"), len(whole))
        # ranks that exchange nothing must draw alike
        draws = seeds.generator(*(("load",) if self._shared else (torch_seed(), "remember")), len(whole))
        store = self._within_budget(whole, draws)
        self._settle()
        params = self._parameters.named()
        if weights is not None and weights.differs(whole, {name: params[name] for name in whole.shapes}):
            warn_of_other_weights("stored gradients do not protect its outputs")
        if self.sharded and self._shared:
            check_same_store(store)
            store = sharded_store(store)
        with self._transaction():
            self._statistics.restore(stored)
            self._drift.reset(store, params)
            self._replace(store)
            self._versions = versions(params.values())
            if self._protections:
                self._statistics.freeze()

    def _parts(self) -> tuple[object, ...]:
        return *super()._parts(), self._binding, self._drift

    def _options(self) -> dict[str, Any]:
        return super()._options() | {
            "outputs": None if callable(self.outputs) else self.outputs,
            "chunk_size": self.chunk_size,
            "dtype": None if self.dtype is None else saving.dtype_name(self.dtype),
        }

    def _replace(self, store: Store, *, bind: bool = True) -> None:
        self.store = store
        if bind:
            self._binding.bind(store.shapes)
        for projection in self._protections:
            projection.reset()

    def _follow_model(self) -> None:
        """Follow what has become of the remembered parameters, or raise; see `Binding`."""
        bound = self._binding.tensors
        with self._transaction():
            store = self._binding.rebind(self.store)
            if self._binding.tensors is not bound:
                self._settle()
                self._drift.reset(store, self._parameters.named())  # counted from the new tensors
            if store is not self.store:
                self._replace(store)

    def _check_moves(self) -> None:
        # inside a window the weights may be anywhere
        if self._warned_of_moves or any(projection.pending for projection in self._protections):
            return
        if outputs_moved(self.store, self._parameters.named(), self._drift.weights):
            self._warn_of_moves()

    def _projectors(self) -> list[Projector]:
        return [projection.projector for projection in self._protections if projection.projector is not None]

    def _projector_for(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        """Return P for those of the tensors that have stored gradients, and these; None if none has."""
        self._follow_model()
        if self._alike is not self.store and self._shared:
            check_same_store(self.store)
            self._alike = self.store
        params = self._parameters.among(tensors)
        projector = projector_of(self.store, params)
        if projector is None:
            return None
        self._warned_of_dropped = self._warned_of_dropped or projector.check_dropped()
        return projector, [params[name] for name in projector.names]

    def _is_intact(self) -> bool:
        return self._binding.intact()

    def _before_window(self, projection: Projection) -> None:
        """Settle other projections of the same weights; look for weights that something else has moved."""
        for other in self._protections:
            if projection.overlaps(other):
                other.settle()
        # once may be weights that were loaded; then the second time, the fourth, the eighth: looking takes time
        if projection.outside_changes > 1 and projection.outside_changes.bit_count() == 1:
            self._check_moves()
