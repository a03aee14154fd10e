"""OGD's projection at every step without ever forming G, for the perceptron under gradient descent.

Write the weights as w = u + Gᵀα. With plain gradient descent on u,

    u ← u − η g,    α ← α + η K⁺ (G g)    gives    w ← w − η P g    exactly,

and G g needs no gradient: with S = x Aᵀ + 1 a layer's output gains (S ∘ α) D, and G g = Σ_layers Σ_batch S ∘ (δ Dᵀ).
A step costs O(n · batch · (in + out)) instead of O(n · p). Momentum is linear, so it carries over to α.

K⁺ s is computed as Wᵀ (W s), or by triangular solves. K⁺ itself, written out in float32, would turn its rounding into
errors of any direction, where that of W stays as small as the overlap's own. With a softness, K⁺ is (K + μ diag K)⁻¹.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.lab.methods.method import Constraint
from ogd.lab.models.gradient import FactoredGradient
from ogd.lab.models.mlp import StackedMLP
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import SGD
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.factored import Factored
from ogd.memory.projection.projector import Projector
from ogd.memory.projection.solve import Whitened


class ImplicitProjection(Constraint):
    """Stands in for the stack during one task; `settle` folds Gᵀα into its weights."""

    def __init__(self, optimizer: SGD, projector: Projector) -> None:
        assert isinstance(optimizer.model, StackedMLP)
        self.model: StackedMLP = optimizer.model
        self.network = self
        self.optimizer, self.solve = optimizer, projector.solve
        self.blocks = [_factored(projector.block(*names)) for names in self.model.names]  # one per layer
        self.one = int(self.blocks[0].bias)  # of the bias: S = x Aᵀ + 1, or x Aᵀ where there is none
        self.alpha = torch.zeros(len(self.model.runs), projector.n, dtype=self.model.dtype)  # (R, n)
        self.velocity = torch.zeros_like(self.alpha)
        self.S: list[Tensor] = []  # one per layer, (R, B, n)
        self.overlap = self.alpha  # G g (R, n)
        self.ahead, self.at = self.alpha, 0

    @torch.no_grad()
    def foresee(self, x: Tensor) -> None:
        """Compute the first layer's S for many steps at once: it depends on the inputs alone."""
        A = self.blocks[0].A
        self.ahead, self.at = torch.bmm(x.flatten(2).to(A.dtype), A.mT).add_(self.one), 0  # (R, steps · B, n)

    def passing(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        self.S = []
        return self.model.passing(x, self._add_low_rank)

    def backward(self, tape: list[Tensor], delta: Tensor) -> FactoredGradient:
        self.overlap = torch.zeros_like(self.alpha)
        return self.model.backward(tape, delta, self._add_low_rank_backward)

    def _add_low_rank(self, i: int, x: Tensor, z: Tensor) -> None:
        if i:
            S = torch.bmm(x, self.blocks[i].A.mT).add_(self.one)
        else:
            S = self.ahead[:, self.at : self.at + x.shape[1]]
            self.at += x.shape[1]
        self.S.append(S)
        z.baddbmm_(S * self.alpha[:, None], self.blocks[i].D)

    def _add_low_rank_backward(self, i: int, delta: Tensor, before: Tensor | None) -> None:
        block = self.blocks[i]
        E = torch.bmm(delta, block.D.mT)  # (R, B, n)
        self.overlap += (self.S[i] * E).sum(1)
        if before is not None:
            before.baddbmm_(E.mul_(self.alpha[:, None]), block.A)

    @torch.no_grad()
    def after_step(self) -> None:
        lr, momentum = self.optimizer.lr, self.optimizer.momentum
        rows = self.velocity if momentum else self.alpha
        if momentum:
            self.velocity.mul_(momentum)
        scale = 1.0 if momentum else lr
        if isinstance(self.solve, Whitened):
            # one run at a time: W[r] @ s[r] beats bmm for one column on the CPU; its second use finds W in the cache
            for row, W, s in zip(rows, self.solve.W, self.overlap, strict=True):
                row.addmv_(W.mT, W @ s, alpha=scale)
        else:
            rows.add_(self.solve(self.overlap), alpha=scale)
        if momentum:
            self.alpha.add_(self.velocity, alpha=lr)

    @torch.no_grad()
    def settle(self) -> None:
        """Fold Gᵀα into the weights, and Gᵀ of α's velocity into theirs: then the optimizer's state is all there is."""
        self._fold(self.alpha, list(self.model.params.values()))
        self.alpha.zero_()
        if self.optimizer.momentum:
            self._fold(-self.velocity, self.optimizer.velocity)
            self.velocity.zero_()

    @torch.no_grad()
    def settled(self) -> Stack:
        copied = copy.deepcopy(self.model)
        self._fold(self.alpha, list(copied.params.values()))
        return copied

    def _fold(self, alpha: Tensor, into: Sequence[Tensor]) -> None:
        step = 1 + self.one  # parameters of a layer
        for i, block in enumerate(self.blocks):
            block.add_combination(into[step * i : step * (i + 1)], alpha)


def _factored(block: Block) -> Factored:
    assert isinstance(block, Factored)
    return block
