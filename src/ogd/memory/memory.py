"""class Memory: what a model must not forget, and how training is kept from forgetting it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ogd.memory import state
from ogd.memory.budget import Budget, BudgetExceeded
from ogd.memory.checks import check_options, check_task, check_update
from ogd.memory.examples import draw
from ogd.memory.explain import Explanation, explained
from ogd.memory.gradients import CHUNK_MOST, check_dtype, check_model, gather
from ogd.memory.outputs import Chosen, Logits, Outputs
from ogd.memory.parameters import Parameters
from ogd.memory.projector import DIRECT, Projector, kept, projector_of
from ogd.memory.protect import Protection, check_protectable
from ogd.memory.stats import Drift, Stats, by_task
from ogd.memory.store import Store


class Memory:
    """Gradients of a model's outputs on finished tasks, and the protection of those outputs from training.

    Empty at first: it protects nothing until a task is remembered. From then on each step of a protected
    optimizer moves the weights only where, to first order, no remembered output changes. In bfloat16 that
    holds only to its rounding of the weights after each step, a hundredth or more of the way they move.

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
        model: any module. Its parameters are protected by name.
        per_task: how many examples of a task are remembered, drawn uniformly; None for all that are given.
            Each takes one direction per output that is kept.
        outputs: which outputs of an example are kept: "true" (the logit of its label, OGD-GTL), "mean" (the
            mean logit, OGD-AVE), "all" (each logit, OGD-ALL) or a function of the logits z (B, C) and the
            labels, (z, y) → (B,) or (B, k).
        logits: a function (model, x) → z that computes the logits; None: they are model(x).
        params: which parameters are protected: names, prefixes of names ("encoder") or parameters. None: all
            that are trainable, also those added to the model later. One that is frozen while a task is
            remembered is left out of it, and moves freely for that task if it is trained later.
        budget: the most that may be stored: a number of directions or bytes ("64MB"). More is an error.
        chunk_size: how many examples are differentiated at a time; None: as many as fit 256 MiB.
        dtype: how gradients are stored; None: as the parameters are. torch.bfloat16 takes half the bytes and
            keeps the guarantee to about a hundredth (docs/sizes.md).
    """

    def __init__(
        self,
        model: nn.Module,
        per_task: int | None = 200,
        *,
        outputs: Outputs = "true",
        logits: Logits | None = None,
        params: Iterable[str | nn.Parameter] | None = None,
        budget: int | str | None = None,
        chunk_size: int | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_options(model, per_task, outputs, logits, chunk_size)
        check_dtype(dtype)
        self.dtype = dtype
        self.model, self.outputs, self.logits = model, outputs, logits
        self.per_task = None if per_task is None else int(per_task)
        self.chunk_size = None if chunk_size is None else int(chunk_size)
        self.budget = Budget.parse(budget)
        self.parameters = Parameters(model, params)
        self.store = Store()
        self._drift = Drift()
        self._protections: list[Protection] = []

    def __len__(self) -> int:
        """The number of stored directions: the rows of G."""
        return len(self.store)

    @property
    def tasks(self) -> tuple[int, ...]:
        """The number of directions of each remembered task."""
        return self.store.tasks

    @property
    def nbytes(self) -> int:
        """Bytes of the stored gradients; about as much is written by `save`."""
        return self.store.nbytes

    @property
    def resident_nbytes(self) -> int:
        """Bytes in use: the gradients and what is derived from them, K and the projectors."""
        projectors = sum(p.projector.nbytes for p in self._protections if p.projector is not None)
        return self.nbytes + self.store.derived_nbytes + projectors

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
        classes: Sequence[int] | None = None,
        logits: Logits | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Store the gradients of a finished task at the model's present weights.

        Gradients are taken in evaluation mode: batch statistics of training mode would couple the examples.
        The model's modes, buffers, gradients and hooks and the random state are as before afterwards.

        Args:
            data: a DataLoader, a Dataset or tensors (x, y); x may be a tuple, list or dict of tensors.
            classes: which logits are the task's, in a model of several heads: "mean" and "all" take only these,
                and for "true" the labels must be among them.
            logits: a function (model, x) → z for this task, in place of the memory's own.
            generator: draws the examples. None: one that depends on torch's seed and on how much is stored.
        """
        check_task(classes, logits, generator)
        params = self.parameters.trainable()
        check_model(self.model, params)
        shapes = {name: p.shape for name, p in params.items()}
        self.store.check_shapes(shapes)
        self.settle()
        if generator is None:
            generator = Generator().manual_seed((torch.initial_seed() + len(self)) % 2**63)
        chosen = Chosen(self.model, self.outputs, logits or self.logits, classes)
        examples = draw(data, self.per_task, generator, self.chunk_size or CHUNK_MOST)
        pieces, rows = gather(chosen, params, examples, len(self), self.chunk_size, self.dtype, self.per_task)
        store = self.store.grown(pieces, rows, shapes)
        self.budget.check(len(store), store.nbytes)
        self._drift.remembered(self.store, store, dict(self.model.named_parameters()))
        self._replace(store)

    def protect(self, optimizer: Optimizer, every: int = 1) -> Protection:
        """From now on, let the optimizer move the weights only where remembered outputs do not change.

        Each step's Δw becomes P Δw. With every=k the displacement of k steps is projected at once, which
        costs less; in between the weights are where the optimizer put them, so call `settle` before you use
        or replace them. Only trainable parameters of this optimizer are moved. When several protected
        optimizers share a model, each of them alone leaves the remembered outputs as they are.

        Returns the protection, a context manager that ends it; ignore it to protect until `unprotect`.
        """
        check_protectable(optimizer, every)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if not self.parameters.among(held):
            raise ValueError("optimizer holds no protected parameter: was it made for another model?")
        self.settle()
        protection = Protection(optimizer, every, self._projector_among, lambda p: p.settle_others(self._protections))
        self._protections.append(protection)
        return protection

    def unprotect(self, optimizer: Optimizer | None = None) -> None:
        """End the protection of an optimizer, or of all; what is pending is projected first."""
        ending = [p for p in self._protections if optimizer is None or p.optimizer() is optimizer]
        if optimizer is not None and not ending:
            raise ValueError("this optimizer is not protected by this memory")
        for protection in ending:
            protection.unprotect()
        self._protections = [p for p in self._protections if p not in ending]

    def settle(self) -> None:
        """Project what is pending where protections have every > 1."""
        for protection in self._protections:
            protection.settle()
        self._protections = [p for p in self._protections if p.active]

    def project(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """P u for an update given by parameter names, for those who write their own optimizer.

        Parameters that are not in `update` count as fixed; those that are not protected pass unchanged.

        Examples:
            >>> model = nn.Linear(2, 1, bias=False)
            >>> memory = Memory(model, outputs="all")
            >>> memory.remember((torch.tensor([[1.0, 0.0]]), None))
            >>> memory.project({"weight": torch.tensor([[3.0, 4.0]])})
            {'weight': tensor([[0., 4.]])}
        """
        check_update(update, self.model)
        result = {name: u.detach().clone() for name, u in update.items()}
        protected = {name: u for name, u in result.items() if name in self.parameters}
        projector = projector_of(self.store, protected)
        if projector is not None:
            ours = [result[name] for name in projector.names]
            projector.remove(ours, [-u for u in ours])
        return result

    def state_dict(self) -> dict[str, Any]:
        """Everything stored, as plain values and tensors. What is pending is projected first."""
        self.settle()
        return state.to_dict(self.store, state.saved_options(self))

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace what is stored by a `state_dict`, checked against the model; an error changes nothing."""
        store = state.from_dict(stored, self.model)
        self.budget.check(len(store), store.nbytes)
        self.settle()
        self._drift = Drift()
        self._drift.remembered(Store(), store, dict(self.model.named_parameters()))
        self._replace(store)

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
        chosen = Chosen(self.model, self.outputs, logits or self.logits, classes)
        examples = next(draw(data, 2, Generator().manual_seed(0), 2))
        return explained(chosen, self.parameters.trainable(), examples, self.dtype)

    def stats(self) -> Stats:
        """What protection does to the updates, the room that is left, and how far remembered outputs have moved."""
        params = dict(self.model.named_parameters())
        last = [p.projector.last for p in self._protections if p.projector is not None]
        drift = by_task(self._drift.now(self.store, params), self.tasks)
        size = sum(p.numel() for p in self.parameters.trainable().values())
        rank = self.rank if len(self) <= DIRECT else None
        return Stats(tuple(kept(two) for two in last if two is not None), len(self), rank, size, drift)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a safetensors file; a file that exists is replaced when all is written."""
        state.write(self.state_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, **options: Any) -> Self:
        """A memory from a file of `save`, for a model of the same parameters.

        The options of `Memory` are as saved unless given here. Functions cannot be saved: give `logits=` and
        `outputs=` again where the memory had them.
        """
        stored = state.read(path)
        try:
            memory = cls(model, **state.options(stored, options))
            memory.load_state_dict(stored)
        except ValueError as error:
            kind = BudgetExceeded if isinstance(error, BudgetExceeded) else ValueError
            raise kind(f"{os.fspath(path)}: {error}") from error
        return memory

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which protect no optimizer; what is pending is projected first."""
        self.settle()
        return {**vars(self), "_protections": []}

    def _replace(self, store: Store) -> None:
        self.store = store
        for protection in self._protections:
            protection.forget()

    def _projector_among(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        params = self.parameters.among(tensors)
        projector = projector_of(self.store, params)
        return None if projector is None else (projector, [params[name] for name in projector.names])
