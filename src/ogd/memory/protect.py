"""Protecting an optimizer: what it did to the weights, Δw, becomes P Δw, through PyTorch's own step hooks.

With every = k the displacement of k steps is projected at once: w ← anchor + P (w − anchor), where the anchor is
the weights before the first of them. As P = I − Gᵀ K⁺ G that is  w ← w − Gᵀ K⁺ G (w − anchor).
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ogd.memory.projection import coefficients, cutoff, whitener
from ogd.memory.store import Piece

_protected: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()


def working(dtype: torch.dtype) -> torch.dtype:
    """The precision in which updates of a parameter are projected: half types in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Projector:
    """P for some parameters, given the pieces of G in their columns and their K."""

    def __init__(self, pieces: Iterable[Piece], params: Mapping[str, Tensor], K: Tensor):
        self.names = tuple(params)
        self.n = len(K)
        at = {name: i for i, name in enumerate(params)}
        self._terms = []
        for piece in pieces:
            first = params[piece.names[0]]
            block = piece.block.to(first.device, working(first.dtype)).laid_out()
            self._terms.append((block, slice(piece.start, piece.stop), [at[name] for name in piece.names]))
        dtypes = {working(p.dtype) for p in params.values()}
        self._dtype = torch.float32 if torch.float32 in dtypes else torch.float64
        self.W = whitener(K, cutoff(self.n, self._dtype)).to(self._dtype)  # (r, n)

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """From params, take Gᵀ K⁺ G u in place; `opposite` is −u."""
        if not self._terms:
            return
        s = torch.zeros(self.n, dtype=self._dtype, device=self.W.device)
        for block, rows, which in self._terms:
            s[rows] += block.overlap([opposite[i] for i in which]).to(s)
        c = coefficients(self.W, s)
        for block, rows, which in self._terms:
            first = opposite[which[0]]
            block.add_combination([params[i] for i in which], c[rows].to(first.device, working(first.dtype)))


class Protection:
    """An optimizer under protection, until `unprotect`; as a context manager it ends with the block."""

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        projector: Callable[[Iterable[Tensor]], tuple[Projector, list[Tensor]] | None],
        before: Callable[["Protection"], None],
    ):
        _check(optimizer, every)
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
        optimizer = self.optimizer()
        return optimizer is not None and optimizer in _protected

    def settle(self) -> None:
        """Project what is pending."""
        if not self.pending:
            return
        self.pending = 0
        assert self.projector is not None
        with torch.no_grad():
            torch._foreach_sub_(self._anchor, self._params)
            self.projector.remove(self._params, self._anchor)

    def unprotect(self) -> None:
        """Project what is pending and leave the optimizer alone from now on."""
        self.settle()
        for handle in self._handles:
            handle.remove()
        optimizer = self.optimizer()
        if optimizer is not None:
            _protected.discard(optimizer)

    def forget(self) -> None:
        """Make the projector anew at the next step: G has changed."""
        self.settle()
        self._seen = []

    def shares(self, other: "Protection") -> bool:
        return not {id(p) for p in self._params}.isdisjoint(id(p) for p in other._params)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unprotect()

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
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


def _check(optimizer: object, every: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, LBFGS):
        raise ValueError(
            "LBFGS cannot be protected: inside one step it moves the weights several times and judges each move "
            "by the loss, which a projection afterwards would contradict; use SGD, Adam or another one-move optimizer"
        )
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"every must be a whole number of steps, 1 or more, not {every!r}")
    if optimizer in _protected:
        raise ValueError("this optimizer is protected already: call unprotect(optimizer) first")
