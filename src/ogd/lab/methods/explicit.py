"""A projection now and then, OGD's or another, for any stack and any optimizer.

Keep the weights at the last projection, the anchor, and every k steps replace the displacement since then by its
projection: w ← anchor + P (w − anchor).
"""

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ogd.lab.methods.constraint import Constraint
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import Optimizer


class Projection(Protocol):
    """Takes from an update of the named parameters what it must not do."""

    @property
    def names(self) -> Sequence[str]: ...

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """From params, take (I − P) u in place; `opposite` is −u."""


class Explicit(Constraint):
    """Projects the displacement of a stack's weights every k steps."""

    def __init__(self, optimizer: Optimizer, projector: Projection, every: int) -> None:
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
