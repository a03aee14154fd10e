"""How a memory protects: optimizers come under protection and leave it, and what is pending is settled."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ogd.memory.checks import check_parameters
from ogd.memory.model.binding import Binding
from ogd.memory.model.parameters import Parameters
from ogd.memory.model.statistics import Statistics
from ogd.memory.projection.projector import Projector, projector_of
from ogd.memory.projection.store import Store
from ogd.memory.protection.hooked import Hooked, is_protected
from ogd.memory.protection.protectable import check_protectable, optimizers_in, warn_of_averages
from ogd.memory.protection.protection import Protection, versions
from ogd.memory.protection.rehearsal import Rehearsal
from ogd.memory.protection.stats import Drift
from ogd.memory.protection.watching import Watch
from ogd.memory.protection.way import Keep, Way
from ogd.memory.ranks.alike import check_alike
from ogd.memory.ranks.collective import several
from ogd.memory.transaction import AllOrNothing

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Protecting:
    """The half of `Memory` that protects; the other half fills its store."""

    model: nn.Module
    keep: Keep
    parameters: Parameters
    store: Store
    statistics: Statistics
    distributed: bool
    _alike: Store | None
    _watch: Watch
    _drift: Drift
    _binding: Binding
    _protections: list[Protection | Rehearsal]
    _dropped_told = False  # whether we have warned of gradients that protect nothing
    _versions: list[int]  # of the parameters when the last task was remembered

    def __len__(self) -> int:
        raise NotImplementedError

    def _account(self) -> None:
        raise NotImplementedError

    def _changing(self, *protections: Hooked) -> AllOrNothing:
        """A block in which an exception leaves the memory, and some protections, as they were."""
        parts = (self.parameters, self._binding, self._drift, self._watch, self.statistics)
        return AllOrNothing(self, *parts, *protections)

    def protect(
        self,
        optimizer: Optimizer | Iterable[Optimizer] | Mapping[Any, Optimizer],
        every: int | Literal["auto"] | None = None,
        *,
        by: Literal["projection", "rehearsal"] | None = None,
        batch: int | None = None,
        alpha: float | None = None,
        labels: bool | None = None,
        refresh: int | None = None,
    ) -> Protection | Rehearsal:
        """From now on, keep the optimizer's steps from changing remembered outputs.

        by="projection" (stored gradients): each step's Δw becomes P Δw, so it moves the weights only where, to first
        order, no remembered output changes. With every=k the displacement of k steps is projected at once, which
        costs less; in between the weights are where the optimizer put them, so call `settle` before you use
        or replace them. Only trainable parameters of this optimizer are moved. When several protected
        optimizers share a model, each of them alone leaves the remembered outputs as they are; given as a list they
        do so together, which leaves them more room.

        by="rehearsal" (kept examples): every k-th step the gradient of the remembered loss of a batch from memory is
        added to `.grad`, k times. It comes after gradients were clipped or unscaled, and stays in `.grad` until you
        set it to zero.

            ℓ = alpha · mean (z − z_remembered)² + cross-entropy(z, label)

        Where a model has got more outputs since, the first term is over those that there were. With `Memory(params=…)`
        only those parameters get the gradient.

        Args:
            optimizer: an optimizer, a wrapper with one as its `.optimizer`, or several that step in turn, such as
                those of `{parameter: optimizer}` that step in the backward pass (which cannot rehearse).
            every: how many steps share one projection (1 if None) or one rehearsal; with projection, "auto" measures
                steps and projections and chooses, so that projections cost 2 % of training; the hooks add a few percent
                to very short steps (`protection.every` is the present choice, which depends on the machine: two runs
                need not agree to the last bit).
            by: None: by projection if gradients are stored, by rehearsal if examples are kept, which can be used
                for both.
            batch: of rehearsal: how many examples at a time.
            alpha: of rehearsal: the weight of the outputs.
            labels: of rehearsal: whether labels count.
            refresh: of projection with kept examples: their gradients are taken anew after so many steps.

        Returns the protection, a context manager that ends it; ignore it to protect until `unprotect`.
        """
        way = Way.chosen(self.keep, by, every, batch=batch, alpha=alpha, labels=labels, refresh=refresh)
        optimizers = optimizers_in(optimizer)
        check_protectable(optimizers, is_protected)
        check_parameters(self.model)
        self._account()
        held = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        if not self.parameters.among(held):
            raise ValueError("optimizer holds no protected parameter: was it made for another model?")
        self._settle_and_look()
        if way.by == "projection" and warn_of_averages(optimizers):
            self._watch.warned = True
        with self._changing():
            protection = self._rehearsed(optimizers, way) if way.by == "rehearsal" else self._projected(optimizers, way)
            protection.hook()
            self.statistics.hold()
            self._protections = [*self._protections, protection]
            protection.holds = True
        return protection

    def _projected(self, optimizers: list[Optimizer], way: Way) -> Protection:
        hooks = (self._projector_among, self._on_window, self._on_end, self._stale(way))
        return Protection(optimizers, way.every, *hooks, alone=not self.distributed)

    def _rehearsed(self, optimizers: list[Optimizer], way: Way) -> Rehearsal:
        raise NotImplementedError

    def _stale(self, way: Way) -> Callable[[], bool]:
        """Whether projectors must be made anew before the next step."""
        return lambda: not self._binding.intact()

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
            protection.settle()
        self._on_end(*ending)
        for protection in ending:
            protection.unprotect()  # removes its hooks

    def settle(self) -> None:
        """Project what is pending where protections have every > 1."""
        self._settle()
        if self._unseen():
            self._look()

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

    def _settle(self) -> None:
        for protection in self._protections:
            protection.settle()
        self._protections = [p for p in self._protections if p.active]

    def _settle_and_look(self) -> None:
        self._settle()
        self._look()

    def _look(self) -> None:
        """Warn if the weights have moved without protection; not inside a window, where they may."""
        if not any(isinstance(p, Protection) and p.pending for p in self._protections):
            self._watch.check(self.store, self.parameters.named(), self._drift.weights)

    def _unseen(self) -> bool:
        """Whether the weights have changed, by their version counters, and no protected optimizer has stepped."""
        if not len(self) or not self._protections or any(p.stepped for p in self._protections):
            return False
        before, self._versions = self._versions, versions(self.parameters.named().values())
        return before != self._versions

    def _on_window(self, protection: Protection) -> None:
        protection.settle_others(self._protections)
        # once may be weights that were loaded; then the second time, the fourth, the eighth: looking takes time
        if protection.stirred > 1 and protection.stirred.bit_count() == 1:
            self._look()

    def _on_end(self, *ending: Hooked) -> None:
        with self._changing(*ending):
            self._protections = [p for p in self._protections if p not in ending]
            if not self._protections:
                self.statistics.release()
            for protection in ending:
                protection.holds = False
        self._look()

    def _projector_among(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        self._account()
        if self._alike is not self.store and self._shared:
            check_alike(self.store)
            self._alike = self.store
        params = self.parameters.among(tensors)
        projector = projector_of(self.store, params)
        if projector is None:
            return None
        self._dropped_told = self._dropped_told or projector.check_dropped()
        return projector, [params[name] for name in projector.names]
