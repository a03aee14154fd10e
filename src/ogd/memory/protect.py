"""Protecting an optimizer: what it did to the weights, Δw, becomes P Δw, through PyTorch's own step hooks.

With every = k the displacement of k steps is projected at once: w ← anchor + P (w − anchor), where the anchor
is the weights before the first of them. As P = I − Gᵀ K⁺ G that is  w ← w − Gᵀ K⁺ G (w − anchor).
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ogd.checks import is_whole
from ogd.memory.projector import Projector, working

_protected: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()


class Protection:
    """An optimizer under protection, until `unprotect`; as a context manager it ends with the block."""

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        projector: Callable[[Iterable[Tensor]], tuple[Projector, list[Tensor]] | None],
        before: Callable[["Protection"], None],
    ):
        # weak: the optimizer holds us by its hooks, and what is pending must outlive it
        self.optimizer = weakref.ref(optimizer)
        self.every = every
        self.pending = 0
        self._make, self._before = projector, before
        self.projector: Projector | None = None
        self._seen: list[Any] = []
        self._params: list[Tensor] = []
        self._anchor: list[Tensor] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._on_step),
            optimizer.register_step_post_hook(self._on_stepped),
        ]
        _protected.add(optimizer)

    @property
    def active(self) -> bool:
        return bool(self._handles) and self.optimizer() is not None

    def settle(self) -> None:
        """Project what is pending."""
        if not self.pending:
            return
        self.pending = 0
        assert self.projector is not None
        with torch.no_grad():
            torch._foreach_sub_(self._anchor, self._params)
            self.projector.remove(self._params, self._anchor)
        self.projector.check_room()

    def unprotect(self) -> None:
        """Project what is pending and leave the optimizer alone from now on."""
        if not self._handles:  # ended before: the optimizer may be under another protection by now
            return
        self.settle()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        optimizer = self.optimizer()
        if optimizer is not None:
            _protected.discard(optimizer)

    def forget(self) -> None:
        """Make the projector anew at the next step: G has changed."""
        self.settle()
        self._seen = []

    def settle_others(self, protections: Iterable["Protection"]) -> None:
        """A window of steps must not begin on weights that another protection is about to correct."""
        ours = {id(p) for p in self._params}
        for other in protections:
            if other is not self and other.pending and not ours.isdisjoint(id(p) for p in other._params):
                other.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unprotect()

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        held = (p for group in optimizer.param_groups for p in group["params"])
        # an optimizer moves whatever has a gradient, be it frozen by now
        params = [p for p in held if p.requires_grad or p.grad is not None]
        seen = [(id(p), p.dtype, p.device) for p in params]
        if seen != self._seen:
            self.settle()
            self._rebuild(params)
            self._seen = seen
        if self.projector is not None and not self.pending:
            self._before(self)
            with torch.no_grad():
                torch._foreach_copy_(self._anchor, self._params)

    def _on_stepped(self, *_: Any) -> None:
        if self.projector is None:
            return
        self.pending += 1
        if self.pending >= self.every:
            self.settle()

    def _rebuild(self, params: Sequence[Tensor]) -> None:
        made = self._make(params)
        self.projector, self._params = made if made is not None else (None, [])
        self._anchor = [torch.empty_like(p, dtype=working(p.dtype)) for p in self._params]


def check_protectable(optimizer: object, every: object) -> None:
    """Whether what an optimizer does in a step can be projected afterwards."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS cannot be protected: inside one step it moves the weights several times and judges each "
            "move by the loss, which a projection afterwards would contradict; use SGD, Adam or the like"
        )
    if not is_whole(every, 1):
        raise ValueError(f"every must be a whole number of steps, 1 or more, not {every!r}")
    if optimizer in _protected:
        raise ValueError("this optimizer is protected already: call unprotect(optimizer) first")
