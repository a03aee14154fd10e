"""A projection every k steps, OGD's or another, for any stack and any optimizer.

Keep the weights at the last projection, the anchor, and every k steps replace the displacement since then by its
projection: w ← anchor + P (w − anchor).

Gradients that were stored once preserve the outputs while the network is nearly linear in its weights. The renewed
projection computes them again at the present weights, so it preserves what the network does now, which may have
drifted a little.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ogd.lab.methods.method import Constraint
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import Optimizer


class Projector(Protocol):
    """Removes the forbidden part of an update of the named parameters."""

    @property
    def names(self) -> Sequence[str]: ...

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """Subtract (I − P) u from params in place; `opposite` is −u."""


class ExplicitProjection(Constraint):
    """Projects the displacement of a stack's weights every k steps."""

    def __init__(self, optimizer: Optimizer, projector: Projector, every: int) -> None:
        super().__init__(optimizer.model)
        self.projector, self.every = projector, every
        self.params = self._of(optimizer.model)
        self.anchor = [w.detach().clone() for w in self.params]
        self.pending = 0

    def after_step(self) -> None:
        self.pending += 1
        if self.pending == self.every:
            self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        if self.pending:
            self.pending = 0
            torch._foreach_sub_(self.anchor, self.params)  # now minus the displacement
            self.projector.remove(self.params, self.anchor)
            torch._foreach_copy_(self.anchor, self.params)

    @torch.no_grad()
    def settled(self) -> Stack:
        copied = copy.deepcopy(self.model)
        if self.pending:
            self.projector.remove(self._of(copied), torch._foreach_sub(self.anchor, self.params))
        return copied

    def _of(self, model: Stack) -> list[Tensor]:
        return [model.params[name] for name in self.projector.names]


class RenewedProjection(ExplicitProjection):
    """Projects every k steps, with a projector that is made again after `refresh` steps and at the end of an epoch.

    It is made again at the end of an epoch because a killed training resumes there.
    """

    def __init__(self, optimizer: Optimizer, make_projector: Callable[[], Projector], every: int, refresh: int) -> None:
        self.make_projector, self.refresh, self.steps = make_projector, refresh, 0
        super().__init__(optimizer, make_projector(), every)

    def after_step(self) -> None:
        self.steps, self.pending = self.steps + 1, self.pending + 1
        if self.steps == self.refresh:
            self.settle()
        elif self.pending == self.every:
            super().settle()

    def settle(self) -> None:
        super().settle()
        self.projector, self.steps = self.make_projector(), 0
