"""How a memory protects: optimizers come under protection and leave it, and what is pending is settled."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ogd.memory.algebra.projector import Projector, projector_of
from ogd.memory.algebra.store import Store
from ogd.memory.checks import check_whole_parameters
from ogd.memory.model.binding import Binding
from ogd.memory.model.parameters import Parameters
from ogd.memory.model.statistics import Statistics
from ogd.memory.protection.protectable import check_protectable, optimizers_in
from ogd.memory.protection.protection import Protection, protected
from ogd.memory.protection.watching import Watch
from ogd.memory.ranks.collective import several
from ogd.memory.ranks.shared import check_alike

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Protecting:
    """The half of `Memory` that protects; the other half fills its store."""

    model: nn.Module
    parameters: Parameters
    store: Store
    statistics: Statistics
    distributed: bool
    _alike: Store | None
    _watch: Watch
    _binding: Binding
    _protections: list[Protection]

    def _account(self) -> None:
        raise NotImplementedError

    def protect(
        self,
        optimizer: Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer],
        every: int | Literal["auto"] = 1,
    ) -> Protection:
        """From now on, let the optimizer move the weights only where remembered outputs do not change.

        Each step's Δw becomes P Δw. With every=k the displacement of k steps is projected at once, which
        costs less; in between the weights are where the optimizer put them, so call `settle` before you use
        or replace them. Only trainable parameters of this optimizer are moved. When several protected
        optimizers share a model, each of them alone leaves the remembered outputs as they are; given as a list they
        do so together, which leaves them more room.

        Args:
            optimizer: an optimizer, a wrapper with one as its `.optimizer`, or several that step in turn, such as
                those of `{parameter: optimizer}` that step in the backward pass.
            every: how many steps are projected at once; "auto" measures steps and projections and chooses, so that
                protection costs at most 5 % of training (`protection.every` is the present choice, which depends on
                the machine: two runs need not agree to the last bit).

        Returns the protection, a context manager that ends it; ignore it to protect until `unprotect`.
        """
        optimizers = optimizers_in(optimizer)
        check_protectable(optimizers, every, protected)
        check_whole_parameters(self.model)
        self._account()
        held = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        if not self.parameters.among(held):
            raise ValueError("optimizer holds no protected parameter: was it made for another model?")
        self._settle_and_look()
        stale = lambda: not self._binding.intact()  # noqa: E731
        hooks = (self._projector_among, self._on_window, self._on_end, stale)
        protection = Protection(optimizers, every, *hooks, alone=not self.distributed)
        self._protections.append(protection)
        self.statistics.hold()
        return protection

    def unprotect(self, optimizer: Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer] | None = None) -> None:
        """End the protection of an optimizer, or of all; what is pending is projected first.

        Of several that are protected as one, each ends the protection of all. Without protections, statistics that
        were kept (`statistics="keep"`) move again.
        """
        inner = [] if optimizer is None else optimizers_in(optimizer)
        ending = [p for p in self._protections if optimizer is None or any(p.protects(one) for one in inner)]
        if optimizer is not None and not ending:
            raise ValueError("this optimizer is not protected by this memory")
        for protection in ending:
            protection.unprotect()
        if not self._protections:
            self.statistics.release()

    def settle(self) -> None:
        """Project what is pending where protections have every > 1."""
        for protection in self._protections:
            protection.settle()
        self._protections = [p for p in self._protections if p.active]

    def settled(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """The function, called at settled weights: for whatever reads them where protections have every > 1.

        Examples:
            >>> import torch
            >>> from ogd.memory import Memory
            >>> model = nn.Linear(2, 1)
            >>> memory = Memory(model)
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
        return self.distributed and several()

    def _settle_and_look(self) -> None:
        self.settle()
        self._watch.check(self.store, self.parameters.named())

    def _on_window(self, protection: Protection) -> None:
        protection.settle_others(self._protections)
        if not self._watch.weights and len(self.store):  # loaded from a file
            self._watch.begin(self.parameters.trainable(), self.store.shapes)

    def _on_end(self, protection: Protection) -> None:
        self._protections = [p for p in self._protections if p is not protection]
        if not self._protections:
            self.statistics.release()

    def _projector_among(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        self._account()
        if self._alike is not self.store and self._shared:
            check_alike(self.store)
            self._alike = self.store
        params = self.parameters.among(tensors)
        projector = projector_of(self.store, params)
        return None if projector is None else (projector, [params[name] for name in projector.names])
