"""Two ways to move only by P Δw = Δw − Gᵀ K⁺ G Δw, for a stack of runs: never forming G, or now and then.

**Implicit.** Write the weights as w = u + Gᵀα. With plain gradient descent on u,

    u ← u − η g,    α ← α + η K⁺ (G g)    gives    w ← w − η P g    exactly,

and G g needs no gradient: with S = x Aᵀ + 1 a layer's output gains (S ∘ α) D, and G g = Σ_layers Σ_batch S ∘ (δ Dᵀ).
A step costs O(n · batch · (in + out)) instead of O(n · p). Momentum is linear, so it carries over to α.

**Explicit.** Keep the weights at the last projection, the anchor, and every k steps replace the displacement since
then by its projection: w ← anchor + P (w − anchor).

K⁺ s is computed as Wᵀ (W s). K⁺ itself, written out in float32, would turn its rounding into errors of any direction,
where that of W stays as small as the overlap's own.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.blocks import Factored
from ogd.memory.pseudo_inverse import coefficients
from ogd.models import Factors, StackedMLP


class Implicit:
    """Stands in for the stack during one task; `settle` folds Gᵀα into its weights."""

    def __init__(self, model: StackedMLP, blocks: Sequence[Factored], whiteners: Tensor) -> None:
        self.model, self.blocks, self.whiteners = model, blocks, whiteners
        self.alpha = torch.zeros(len(model.runs), blocks[0].n, dtype=model.layers[0][0].dtype)  # (R, n)
        self.velocity = torch.zeros_like(self.alpha)
        self.S: list[Tensor] = []  # one a layer, (R, B, n)
        self.overlap = self.alpha  # G g (R, n)
        self.ahead, self.at = self.alpha, 0

    @torch.no_grad()
    def foresee(self, x: Tensor) -> None:
        """Compute the first layer's S for many steps at once: it depends on the inputs alone."""
        A = self.blocks[0].A
        self.ahead, self.at = torch.bmm(x.to(A.dtype), A.mT).add_(1), 0  # (R, steps · B, n)

    @torch.no_grad()
    def activations(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        inputs, self.S = [], []
        alpha, last = self.alpha[:, None], len(self.blocks) - 1
        for i, ((weight, bias), block) in enumerate(zip(self.model.layers, self.blocks, strict=True)):
            inputs.append(x)
            if i:
                S = torch.bmm(x, block.A.mT).add_(1)
            else:
                S = self.ahead[:, self.at : self.at + x.shape[1]]
                self.at += x.shape[1]
            self.S.append(S)
            x = torch.bmm(x, weight.mT).add_(bias[:, None]).baddbmm_(S * alpha, block.D)
            if i < last:
                x.relu_()
        return inputs, x

    @torch.no_grad()
    def backward(self, inputs: list[Tensor], delta: Tensor) -> Factors:
        deltas, alpha = [delta], self.alpha[:, None]
        self.overlap = torch.zeros_like(self.alpha)
        for i in range(len(self.blocks) - 1, -1, -1):
            block, weight = self.blocks[i], self.model.layers[i][0]
            E = torch.bmm(delta, block.D.mT)  # (R, B, n)
            self.overlap += (self.S[i] * E).sum(1)
            if i:
                delta = torch.bmm(delta, weight).baddbmm_(E.mul_(alpha), block.A)
                delta = torch.ops.aten.threshold_backward(delta, inputs[i], 0)
                deltas.append(delta)
        return list(zip(inputs, reversed(deltas), strict=True))

    @torch.no_grad()
    def after_step(self, lr: float, momentum: float) -> None:
        rows = self.velocity if momentum else self.alpha
        if momentum:
            self.velocity.mul_(momentum)
        # one run at a time: W[r] @ s[r] beats bmm for one column on the CPU, and its second use finds W in the cache
        for row, W, s in zip(rows, self.whiteners, self.overlap, strict=True):
            row.addmv_(W.mT, W @ s, alpha=1.0 if momentum else lr)
        if momentum:
            self.alpha.add_(self.velocity, alpha=lr)

    @torch.no_grad()
    def settle(self) -> None:
        self._fold_into(self.model)
        self.alpha.zero_()

    @torch.no_grad()
    def settled(self) -> StackedMLP:
        copied = copy.deepcopy(self.model)
        self._fold_into(copied)
        return copied

    def _fold_into(self, model: StackedMLP) -> None:
        for layer, block in zip(model.layers, self.blocks, strict=True):
            block.add_combination(layer, self.alpha)


class Explicit:
    """Projects the displacement of a stack's weights every k steps."""

    def __init__(self, model: StackedMLP, blocks: Sequence[Factored], whiteners: Tensor, every: int) -> None:
        self.model, self.blocks, self.whiteners, self.every = model, blocks, whiteners, every
        self.parameters = [w for layer in model.layers for w in layer]
        self.anchor = [w.detach().clone() for w in self.parameters]
        self.pending = 0

    def after_step(self, lr: float, momentum: float) -> None:
        self.pending += 1
        if self.pending == self.every:
            self.settle()

    @torch.no_grad()
    def settle(self) -> None:
        if self.pending:
            self.pending = 0
            torch._foreach_sub_(self.anchor, self.parameters)  # now minus the displacement
            self._take_out(self.model, self.anchor)
            torch._foreach_copy_(self.anchor, self.parameters)

    @torch.no_grad()
    def settled(self) -> StackedMLP:
        copied = copy.deepcopy(self.model)
        if self.pending:
            self._take_out(copied, torch._foreach_sub(self.anchor, self.parameters))
        return copied

    def _take_out(self, model: StackedMLP, opposite: Sequence[Tensor]) -> None:
        """From the weights take Gᵀ K⁺ G u, given −u."""
        pairs = zip(opposite[::2], opposite[1::2], strict=True)
        s = torch.stack([block.overlap(pair) for block, pair in zip(self.blocks, pairs, strict=True)]).sum(0)
        c = coefficients(self.whiteners, s)  # (R, n)
        for layer, block in zip(model.layers, self.blocks, strict=True):
            block.add_combination(layer, c)
