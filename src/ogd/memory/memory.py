"""class Memory: what a model must not forget, and how training is kept from forgetting it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, Self

import torch
from torch import Generator, Tensor, nn

from ogd import seeds
from ogd.json_files import brief
from ogd.memory import state
from ogd.memory.budget import Budget, BudgetExceeded
from ogd.memory.checks import (
    Choice,
    check_draw,
    check_forgotten,
    check_full,
    check_options,
    check_parameters,
    check_task,
    check_update,
)
from ogd.memory.gradients.explain import Explanation, explained
from ogd.memory.gradients.gather import CHUNK_MOST, check_dtype, check_model
from ogd.memory.gradients.remembering import seeded
from ogd.memory.inputs.examples import Drawn
from ogd.memory.inputs.merging import Merged
from ogd.memory.inputs.outputs import Logits, Outputs
from ogd.memory.inputs.uncertain import Uncertain
from ogd.memory.keeping import Keeping
from ogd.memory.model.binding import Binding
from ogd.memory.model.names import plain_names
from ogd.memory.model.parameters import Parameters
from ogd.memory.model.statistics import Statistics
from ogd.memory.projection.projector import DIRECT, projector_of
from ogd.memory.projection.rows import within, without
from ogd.memory.projection.store import Store
from ogd.memory.protection.protection import Protection, versions
from ogd.memory.protection.rehearsal import Rehearsal
from ogd.memory.protection.stats import Drift, Stats, by_task
from ogd.memory.protection.watching import Fingerprint, Watch, warn_of_other_weights
from ogd.memory.protection.way import ALPHA, Keep
from ogd.memory.ranks.alike import check_alike
from ogd.memory.ranks.collective import together
from ogd.memory.ranks.shared import sharded_store, whole_store


class Memory(Keeping):
    """Gradients of a model's outputs on finished tasks, and the protection of those outputs from training.

    A new memory is empty and protects nothing until you remember a task. From then on each step of a protected
    optimizer moves the weights only where, to first order, no remembered output changes. In bfloat16 this
    holds only up to the rounding of the weights after each step, a hundredth or more of the way they move.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> memory = Memory(model, per_task=2)
        >>> protection = memory.protect(optimizer)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> memory.remember((x, y))
        >>> memory
        Memory(2 directions of 1 task, 56 bytes; protects 15 numbers in 2 parameters of Linear; outputs='true')

    Args:
        model: any module. Its parameters are known by their plain names, without what `torch.compile` or DDP add.
        per_task: how many examples of a task are remembered, drawn uniformly; None for all that are given.
            Each takes one direction per output that is kept.
        outputs: which outputs of an example are kept: "true" (the logit of its label, OGD-GTL), "mean" (the
            mean logit, OGD-AVE), "all" (each logit, OGD-ALL) or a function of the logits z (B, C) and the
            labels, (z, y) → (B,) or (B, k).
        logits: a function (model, x) → z that computes the logits; None: they are model(x), model(*x) or model(**x),
            as its forward takes x, or the `.logits` of that.
        params: which parameters are protected: names, prefixes of names ("encoder") or parameters. None: all
            that are trainable, also those added to the model later. One that is frozen while a task is
            remembered is left out of it, and moves freely for that task if it is trained later.
        budget: the most that may be stored: a number of directions or bytes ("64MB").
        when_full: what happens if a task does not fit the budget: "raise" an error, or "shrink" all tasks to shares
            as equal as can be, each a uniform draw of the examples it had.
        chunk_size: how many examples are differentiated at a time; None: as many as fit 256 MiB.
        statistics: "keep": from the first remembered task on, buffers that a forward pass would change (BatchNorm's
            running statistics) stay as they are, and such layers use them in training too; "move" lets them move,
            and remembered outputs drift with them.
        sharded: with several ranks of torch.distributed, keep on each only its share of the stored gradients.
        distributed: whether the ranks share one memory. False: each rank has its own memory, for its own model.
        dtype: how gradients are stored; None: as the parameters are. torch.bfloat16 takes half the bytes, and its
            rounding leaves a little of each update's effect (docs/sizes.md).
        keep: "gradients": the paper's. "examples": the examples themselves with the model's outputs, to be rehearsed
            (see `protect`), or to take their gradients at the present weights.
    """

    def __new__(cls, *_: Any, keep: Keep = "gradients", **__: Any) -> "Memory":
        """An object of the class that keeps what is asked for."""
        if keep not in list(KEEPING):
            raise ValueError(f'keep must be "gradients" or "examples", not {keep!r}')
        if cls is not Memory and not issubclass(cls, KEEPING[keep]):
            raise TypeError(
                f'{cls.__name__} stores gradients: for keep="examples" derive it from ogd.memory.ExampleMemory'
            )
        return super().__new__(KEEPING[keep] if cls is Memory else cls)

    def __init__(
        self,
        model: nn.Module,
        per_task: int | None = 200,
        *,
        outputs: Outputs = "true",
        logits: Logits | None = None,
        params: Iterable[str | nn.Parameter] | None = None,
        budget: int | str | None = None,
        when_full: Literal["raise", "shrink"] = "raise",
        chunk_size: int | None = None,
        statistics: Literal["keep", "move"] = "keep",
        sharded: bool = False,
        distributed: bool = True,
        dtype: torch.dtype | None = None,
        keep: Keep = "gradients",
    ):
        check_options(model, per_task, outputs, logits, chunk_size)
        check_full(when_full, budget)
        check_dtype(dtype)
        self.dtype, self.keep = dtype, keep
        self.model, self.outputs, self.logits = model, outputs, logits
        self.per_task = None if per_task is None else int(per_task)
        self.chunk_size = None if chunk_size is None else int(chunk_size)
        self.budget, self.when_full = Budget.parse(budget), when_full
        self.parameters = Parameters(model, params)
        self._binding = Binding(self.parameters)
        self.store = Store()
        self.sharded, self.distributed = sharded, distributed
        self._alike: Store | None = None  # the last store that was seen to be the same on all ranks
        self.statistics = Statistics(model, statistics)
        self._watch, self._drift = Watch(), Drift()
        self._versions = []
        self._protections: list[Protection | Rehearsal] = []

    def __len__(self) -> int:
        """The number of stored directions: the rows of G."""
        return len(self.store)

    def __bool__(self) -> bool:
        """Always true: an empty memory protects as soon as a task is remembered."""
        return True

    @property
    def tasks(self) -> tuple[int, ...]:
        """The number of directions of each remembered task."""
        return self.store.tasks

    @property
    def nbytes(self) -> int:
        """Bytes of the stored gradients (sharded: this rank's); about as much is written by `save` (sharded: all)."""
        return self.store.nbytes

    @property
    def resident_nbytes(self) -> int:
        """Bytes in use: the gradients and what is derived from them, K and the projectors."""
        projectors = sum(projector.nbytes for projector in self._projectors())
        return self.store.nbytes + self.store.derived_nbytes + projectors

    @property
    def rank(self) -> int:
        """The number of independent directions among the stored ones."""
        return self.store.rank

    def __repr__(self) -> str:
        params = self.parameters.trainable()
        tasks = f"{len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}"
        return (
            f"Memory({len(self):,} directions of {tasks}, {self.nbytes:,} bytes; "
            f"protects {sum(p.numel() for p in params.values()):,} numbers in {len(params)} parameters "
            f"of {type(self.model).__name__}; outputs={self.outputs!r})"
        )

    def remember(
        self,
        data: object,
        *,
        per_task: int | EllipsisType | None = ...,
        choose: Choice = "uniform",
        merge: int = 1,
        classes: Sequence[int] | None = None,
        logits: Logits | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Store the gradients of a finished task at the model's present weights.

        Gradients are taken in evaluation mode: batch statistics of training mode would couple the examples.
        Afterwards the model's modes, buffers, gradients and hooks and the random state are as they were.
        With several ranks of torch.distributed all must call it, each with its part of the data or all with the same.

        Args:
            data: a DataLoader, a Dataset, tensors, or a list of batches or examples. A batch is a pair (x, y), where x
                may be a tuple, list or dict of tensors; a triple (x, y, task); inputs and labels (a, b, y); or a dict
                with the key "labels".
            per_task: how many examples of this task are remembered, in place of the memory's own number; None for all.
            choose: how they are drawn. "uniform": every example is equally likely. "balanced": equal numbers of each
                label as far as possible; this reads all of the data. "uncertain": the less certain the model is of an
                example, the more likely it is drawn; this computes the outputs of 20 times as many examples.
            merge: draw so many times as many examples, and remember the means of groups that are alike and have the
                same label: each then stands for about so many. For inputs of floating point, and in one process. Labels
                that are not classes take no part in the grouping, and are averaged too.
            classes: which logits are the task's, in a model of several heads: "mean" and "all" take only these,
                and for "true" the labels must be among them.
            logits: a function (model, x) → z for this task, in place of the memory's own.
            generator: draws the examples. None: one that depends on torch's seed and on how much is stored.
        """
        count = self.per_task if isinstance(per_task, EllipsisType) else per_task
        check_draw(count, choose, merge, self._shared)
        check_task(classes, logits, generator)
        check_parameters(self.model)
        self._account()
        params = self.parameters.trainable()
        # examples of a frozen model can be kept: it may be unfrozen before they are rehearsed
        check_model(self.model, params if self.keep == "gradients" else self.parameters.named())
        self._settle_and_look()
        chosen = self._chosen(logits, classes)
        drawn = None if count is None else int(count) * int(merge)
        how = (generator or seeded(len(self), self._shared), self.chunk_size or CHUNK_MOST)
        labelled = self.outputs == "true" and self.keep == "gradients"
        if choose == "uncertain" and drawn is not None:
            examples: Drawn = Uncertain(chosen, data, drawn, *how, labelled)
        else:
            examples = Drawn(data, drawn, *how, choose == "balanced", labelled)
        if merge > 1 and count is not None:
            examples = Merged(examples, count)
        with self._changing():
            with self.statistics.noting() as called:
                self._keep(chosen, params, examples)
            if self._shared:
                called = set().union(*together(lambda: called, "name its modules"))  # a rank may have had no share
            self.statistics.names = self.statistics.names | called
            self.statistics.hold()
            self._versions = versions(self.parameters.named().values())

    def observe(self, x: Any, y: Any = None) -> None:
        """Show the memory a batch of a stream without tasks; for memories that keep examples (see `ExampleMemory`)."""
        raise ValueError('a stream has no end at which gradients could be taken: make the memory with keep="examples"')

    def remembered_loss(self, batch: int, *, alpha: float = ALPHA, labels: bool = True) -> Tensor | None:
        """The remembered loss of some examples, for memories that keep examples (see `ExampleMemory`)."""
        raise ValueError('a remembered loss needs the examples: make the memory with keep="examples"')

    def forget(self, task: int) -> None:
        """Forget a task, by its place in `tasks`: its directions are removed and its outputs may change again.

        The tasks after it move up by one place. -1 is the last one. With several ranks all must call it.

        Examples:
            >>> model = nn.Linear(4, 3)
            >>> memory = Memory(model)
            >>> for n in (5, 2):
            ...     memory.remember((torch.randn(n, 4), torch.zeros(n).long()))
            >>> memory.forget(0)
            >>> memory.tasks
            (2,)
        """
        check_forgotten(task, len(self.tasks))
        self._settle_and_look()
        with self._changing():
            self._replace(without(self.store, range(len(self.tasks))[task]), bind=False)
            self._drift.begin(self.store, self.parameters.named())

    def project(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """P u for an update given by parameter names, for those who write their own optimizer.

        Parameters that are not in `update` count as fixed; those that are not protected pass unchanged. With
        keep="examples" the gradients are taken at the present weights.

        Examples:
            >>> model = nn.Linear(2, 1, bias=False)
            >>> memory = Memory(model, outputs="all")
            >>> memory.remember((torch.tensor([[1.0, 0.0]]), None))
            >>> memory.project({"weight": torch.tensor([[3.0, 4.0]])})
            {'weight': tensor([[0., 4.]])}
        """
        check_parameters(self.model)
        plain = plain_names(self.model)
        check_update(update, self.parameters.named() | dict(self.model.named_parameters()))
        self._account()
        result = {name: u.detach().clone() for name, u in update.items()}
        protected = {plain.get(name, name): u for name, u in result.items() if plain.get(name, name) in self.parameters}
        projector = projector_of(self._present(), protected)
        if projector is not None:
            ours = [protected[name] for name in projector.names]
            projector.remove(ours, [-u for u in ours])
        return result

    def state_dict(self) -> dict[str, Any]:
        """Everything stored, as plain values and tensors. What is pending is projected first.

        If the memory is sharded, all ranks must call it (and `save`, `load_state_dict`, `forget`, `settle` and `rank`).
        """
        self._account()
        self._settle_and_look()
        store, params = whole_store(self.store), self.parameters.named()
        weights = Fingerprint.of(store, {name: params[name] for name in store.shapes}).to_state()
        stored = state.to_dict(store, state.saved_options(self))
        return {**stored, "statistics": sorted(self.statistics.names), "weights": weights}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace what is stored by a `state_dict`, checked against the model; an error changes nothing.

        The model must have the weights that it had when the state was made, or have been trained under protection
        since: stored gradients protect the outputs of these weights. A warning says if it has others.
        """
        check_parameters(self.model)
        store = state.from_dict(stored, self.parameters.named())
        weights = Fingerprint.from_state(stored.get("weights"), len(store))
        # without a word between them, ranks must draw alike
        generator = seeds.generator("load", len(store)) if self._shared else seeded(len(store))
        whole, store = store, within(self.budget, self.when_full, store, generator)
        self._settle()
        params = self.parameters.named()
        if weights is not None and weights.differs(whole, {name: params[name] for name in whole.shapes}):
            warn_of_other_weights("stored gradients do not protect its outputs")
        if self.sharded and self._shared:
            check_alike(store)
            store = sharded_store(store)
        with self._changing():
            self.statistics.restore(stored)
            self._drift.begin(store, params)
            self._replace(store)
            self._versions = versions(params.values())
            if self._protections:
                self.statistics.hold()

    def explain(
        self, data: object, *, classes: Sequence[int] | None = None, logits: Logits | None = None
    ) -> Explanation:
        """How `remember` would store such data, layer by layer, found out on two examples: a dry run.

        Examples:
            >>> memory = Memory(nn.Linear(4, 3))
            >>> print(memory.explain((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))))
            parameters               bytes  stored
            weight + bias               28  factored: 1 outer product per direction
            together, per direction     28
        """
        check_task(classes, logits, None)
        check_parameters(self.model)
        chosen = self._chosen(logits, classes)
        examples = next(iter(Drawn(data, 2, Generator().manual_seed(0), 2)), None)
        if examples is None:
            raise ValueError("data is empty: there is no example to explain")
        return explained(chosen, self.parameters.trainable(), examples, self.dtype)

    def stats(self) -> Stats:
        """What protection does to the updates, the room that is left, and how far remembered outputs have moved.

        With every=k, steps that are not projected yet count as they are: call `settle` first.
        """
        check_parameters(self.model)
        self._account()
        if self._protections:
            self._look()
        params = self.parameters.named()
        drift = by_task(self._drift.now(self.store, params), self.tasks)
        size = sum(p.numel() for p in self.parameters.trainable().values())
        rank = self.rank if len(self) <= DIRECT else None
        return Stats(self._shares_kept(), len(self), rank, size, drift)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a safetensors file; a file that exists is replaced when all is written."""
        state.write(self.state_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, **options: Any) -> Self:
        """A memory from a file of `save`, for a model of the same parameters.

        The options of `Memory` are as saved unless given here. Functions cannot be saved: give `logits=` and
        `outputs=` again where the memory had them.
        """
        if isinstance(path, nn.Module):
            raise TypeError("path: is a module: the file comes first, Memory.load(path, model)")
        stored = state.read(path)
        try:
            memory = cls(model, **state.options(stored, options))
            memory.load_state_dict(stored)
        except ValueError as error:
            kind = BudgetExceeded if isinstance(error, BudgetExceeded) else ValueError
            raise kind(f"{os.fspath(path)}: {brief(error)}") from error
        return memory

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which protect no optimizer; what is pending is projected first."""
        self._settle()
        return {**vars(self), "_protections": []}


KEEPING: dict[str, type[Memory]] = {"gradients": Memory}  # "examples": `rehearsal.memory`
