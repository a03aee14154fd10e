"""class Memory: the life cycle that both kinds of memory share."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from ogd import seeds
from ogd.memory import saving
from ogd.memory.arguments import check_flag, check_logits, check_module, check_optional_count
from ogd.memory.data.budget import Budget, Contents, shrink_to_budget
from ogd.memory.data.calling import Logits
from ogd.memory.explanation import Explanation
from ogd.memory.model.parameters import Parameters
from ogd.memory.model.running_statistics import RunningStatistics
from ogd.memory.model.supported import check_model, check_parameters
from ogd.memory.optimizers.protectable import check_protectable, optimizers_in
from ogd.memory.optimizers.step_hooks import Protection, is_protected, versions
from ogd.memory.ranks.collective import gather_results, has_several_ranks, torch_seed
from ogd.memory.ranks.sharded_parameters import is_sharded
from ogd.memory.stats import ExampleStats, GradientStats
from ogd.memory.transaction import Transaction

Optimizers = Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer]
_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=Contents)
_H = TypeVar("_H", bound=Protection)


class Memory(ABC):
    """The abstract base of `ExampleMemory` and `GradientMemory`, for annotations and `isinstance`.

    A new memory is empty and protects nothing until you remember a task. An empty memory is true in a condition;
    `len(memory)` counts the stored examples or directions.
    """

    kind: ClassVar[str]  # the name of the class in files

    def __init__(
        self,
        model: nn.Module,
        per_task: int | None,
        *,
        logits: Logits | None,
        params: Iterable[str | nn.Parameter] | None,
        budget: int | str | Budget | None,
        shrink: bool,
        freeze_buffers: bool,
        distributed: bool,
    ):
        check_module(model)
        check_optional_count("per_task", per_task)
        check_logits(logits)
        flags = {"shrink": shrink, "freeze_buffers": freeze_buffers, "distributed": distributed}
        for name, value in flags.items():
            check_flag(name, value)
        self.model, self.logits = model, logits
        self.per_task = None if per_task is None else int(per_task)
        self.budget, self.shrink, self.distributed = Budget.parse(budget), shrink, distributed
        if shrink and self.budget == Budget():
            raise ValueError('shrink=True needs a budget= to shrink to: a whole number, or bytes ("64MB")')
        self._parameters = Parameters(model, params)
        self._statistics = RunningStatistics(model, freeze_buffers)
        self._protections: list[Any] = []
        self._resumed: list[Any] = []  # `_progress` of a loaded state, for optimizers to be protected
        self._versions: list[int] = []  # of the parameters when the last task was remembered
        self._warned_of_moves = False
        self._settled_by_framework = False  # whether a callback calls `settle` before the model is evaluated or saved

    @property
    def params(self) -> list[str] | None:
        """The names, or prefixes of names, of the protected parameters; None for all."""
        return self._parameters.wanted

    @property
    def freeze_buffers(self) -> bool:
        """Whether buffers such as BatchNorm's running statistics are frozen once a task is remembered."""
        return self._statistics.frozen

    @abstractmethod
    def __len__(self) -> int: ...

    def __bool__(self) -> bool:
        """Return True: an empty memory protects as soon as a task is remembered."""
        return True

    @property
    @abstractmethod
    def task_sizes(self) -> tuple[int, ...]:
        """The number of stored examples or directions of each remembered task."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The number of stored bytes, about the size of the file that `save` writes."""

    @abstractmethod
    def remember(
        self,
        data: object,
        *,
        per_task: int | None = None,
        classes: Sequence[int] | None = None,
        logits: Logits | None = None,
        generator: Generator | None = None,
    ) -> None:
        """Store a finished task at the model's present weights."""

    @abstractmethod
    def protect(self, optimizer: Optimizers) -> Protection:
        """Keep the optimizer's steps from changing remembered outputs, from now on."""

    @abstractmethod
    def forget(self, task: int) -> None:
        """Forget a task, by its place in `task_sizes`; -1 is the last task."""

    @abstractmethod
    def explain(
        self, data: object, *, classes: Sequence[int] | None = None, logits: Logits | None = None
    ) -> Explanation:
        """Show on a few examples how `remember` would store such data, and store nothing."""

    @abstractmethod
    def stats(self) -> GradientStats | ExampleStats:
        """Measure how far remembered outputs have moved, and the effect of protection."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the contents of the memory, as plain values and tensors."""

    @abstractmethod
    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Replace the contents by a `state_dict`, checked against the model; an error changes nothing."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a safetensors file; replace an existing file only when all is written.

        `ogd.load(path, model)` reads the file. Load the model's weights first.

        Args:
            path: the file, in a folder that exists.

        Raises:
            OSError: if the file cannot be written.
            ValueError: if an example cannot be saved, for example because its task has its own logits function.

        Examples:
            >>> import tempfile
            >>> from ogd.memory import GradientMemory
            >>> GradientMemory(nn.Linear(2, 1)).save(f"{tempfile.mkdtemp()}/memory.safetensors")
        """
        saving.write(self.state_dict(), path)

    def unprotect(self, optimizer: Optimizers | None = None) -> None:
        """End the protection of an optimizer, or of all; pending steps are projected first.

        Several optimizers that are protected together lose their protection together. Without any protection, frozen
        buffers change again.

        Args:
            optimizer: the optimizer that `protect` got; None for all.

        Raises:
            ValueError: if this memory does not protect the optimizer.

        Examples:
            >>> import torch
            >>> from ogd.memory import GradientMemory
            >>> model = nn.Linear(2, 1)
            >>> optimizer, memory = torch.optim.SGD(model.parameters()), GradientMemory(model)
            >>> memory.protect(optimizer)
            Projection(SGD, every=10, 0 steps pending)
            >>> memory.unprotect(optimizer)
        """
        inner = [] if optimizer is None else optimizers_in(optimizer)
        ending = [p for p in self._protections if optimizer is None or any(p.protects(one) for one in inner)]
        if optimizer is not None and not ending:
            raise ValueError("optimizer is not protected by this memory: give the one that memory.protect got")
        for protection in ending:
            protection.settle()
        self._end(*ending)
        for protection in ending:
            protection.unprotect()  # removes its hooks

    def settle(self) -> None:
        """Project the pending steps (every > 1), so that the weights are protected now."""
        self._settle()
        if self._moved_without_a_step():
            self._check_moves()

    def settled(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return a function that calls `settle` before the given one, for functions that read the weights.

        Args:
            function: any function that reads the weights, such as an average of them or an evaluation.

        Returns:
            A function with the same arguments and result.

        Examples:
            >>> import torch
            >>> from ogd.memory import GradientMemory
            >>> model = nn.Linear(2, 1)
            >>> memory = GradientMemory(model)
            >>> average = torch.optim.swa_utils.AveragedModel(model)
            >>> average.update_parameters = memory.settled(average.update_parameters)
            >>> average.update_parameters(model)
        """

        @wraps(function)
        def at_settled_weights(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            self.settle()
            return function(*args, **kwargs)

        return at_settled_weights

    @property
    def _shared(self) -> bool:
        """Whether the ranks of torch.distributed share this memory."""
        return self.distributed and has_several_ranks()

    def _check_parameters(self) -> None:
        """Raise if the model's parameters have no values, or are divided in a way that this memory does not know."""
        check_parameters(self.model)
        if not self.distributed and has_several_ranks() and is_sharded(self.model):
            raise ValueError(
                "distributed=False is for ranks that train a model each, but fully_shard divides one model among them: "
                "leave it out"
            )

    def _generator(self, generator: Generator | None) -> Generator:
        """Return the user's generator, or one seeded by torch's seed and the size of the memory."""
        return generator or seeds.generator(torch_seed(self._shared), "remember", len(self))

    def _within_budget(self, contents: _C, generator: Generator) -> _C:
        """Return the contents, shrunk to the budget if `shrink` is set, or raise if they exceed it."""
        if self.shrink:
            return shrink_to_budget(contents, self.budget, generator)
        self.budget.check(contents)
        return contents

    def _parts(self) -> tuple[object, ...]:
        """Return the objects whose attributes change together with the memory's own."""
        return self._parameters, self._statistics

    def _transaction(self, *protections: Protection) -> Transaction:
        """Return a context that undoes changes of the memory, and of some protections, if an exception leaves it."""
        return Transaction(self, *self._parts(), *protections)

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Store a task inside the block, completely or not at all; freeze the buffers of the modules that it calls."""
        with self._transaction():
            with self._statistics.called_modules() as called:
                yield
            if self._shared:
                called = set().union(*gather_results(lambda: called, "name its modules"))  # a rank may lack a share
            self._statistics.names = self._statistics.names | called
            self._statistics.freeze()
            self._versions = versions(self._parameters.named().values())

    def _protectable(self, optimizer: Optimizers) -> list[Optimizer]:
        """Return the optimizers in an argument of `protect`, or raise if they cannot be protected."""
        optimizers = optimizers_in(optimizer)
        check_protectable(optimizers, is_protected)
        self._check_parameters()
        check_model(self.model, dict(self.model.named_parameters()))  # here, because `remember` comes after training
        held = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        if not self._parameters.among(held):
            raise ValueError(
                "optimizer holds no protected parameter: was it made for another model, or does it step on copies of "
                "the parameters, as DeepSpeed's ZeRO does (docs/distributed.md)?"
            )
        self._settle_and_check()
        return optimizers

    def _begin(self, protection: _H) -> _H:
        with self._transaction():
            protection.hook()
            self._statistics.freeze()
            self._protections = [*self._protections, protection]
            protection.enabled = True
        return protection

    def _end(self, *ending: Protection) -> None:
        with self._transaction(*ending):
            self._protections = [p for p in self._protections if p not in ending]
            if not self._protections:
                self._statistics.release()
            for protection in ending:
                protection.enabled = False
        self._check_moves()

    @property
    def _progress(self) -> list[Any]:
        """How far the present protections have come, so that a loaded memory continues alike."""
        return [one for protection in self._protections for one in protection.progress] or list(self._resumed)

    def _take_resumed(self, n: int) -> list[Any]:
        taken, self._resumed = self._resumed[:n], self._resumed[n:]
        return taken

    def _settle(self) -> None:
        for protection in self._protections:
            protection.settle()
        self._protections = [p for p in self._protections if p.active]

    def _settle_and_check(self) -> None:
        """Settle the protections; then warn if remembered outputs have moved without them."""
        self._settle()
        self._check_moves()

    @abstractmethod
    def _check_moves(self) -> None:
        """Warn once if remembered outputs have moved although no protected step can have moved them."""

    def _warn_of_moves(self) -> None:
        self._warned_of_moves = True
        warnings.warn(
            "the weights have moved without protection since the last task was remembered, and remembered outputs with "
            "them: was memory.protect(optimizer) left out for a new optimizer, does an optimizer move weights outside "
            "its step() (docs/loops.md), or were other weights loaded?",
            stacklevel=5,
        )

    def _moved_without_a_step(self) -> bool:
        """Return whether the weights' version counters have changed although no protected optimizer has stepped."""
        if not len(self) or not self._protections or any(p.stepped for p in self._protections):
            return False
        before, self._versions = self._versions, versions(self._parameters.named().values())
        return before != self._versions

    def _trainable_numbers(self) -> tuple[int, int]:
        """Return the number of protected trainable weights, and the number of their parameters."""
        params: Sequence[Tensor] = list(self._parameters.trainable().values())
        return sum(p.numel() for p in params), len(params)

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as JSON values; a function becomes True."""
        return {
            "per_task": self.per_task,
            "logits": self.logits is not None,
            "params": self.params,
            "budget": [self.budget.count, self.budget.nbytes],
            "shrink": self.shrink,
            "freeze_buffers": self.freeze_buffers,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle, which protects no optimizer; project pending steps first."""
        self._settle()
        return {**vars(self), "_protections": [], "_resumed": self._progress}
