"""The gradient of a batch for R runs at once, in two forms: as factors, or written out.

For a linear layer with inputs a (R, B, in) and gradients δ (R, B, out) at its outputs the gradient is

    ∂L/∂W = δᵀ a,    ∂L/∂b = δᵀ 1,

so a step W ← W − η δᵀ a is one in-place product that never forms it, and a sum of two gradients is a batch of both
kinds of rows.
"""

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor


class Gradient(Protocol):
    """What an optimizer and a method can do with the gradient of a batch."""

    def dot(self, other: Self) -> Tensor:
        """Return the inner product (R,) of two gradients, all parameters together."""

    def plus(self, other: Self, c: Tensor | None = None) -> Self:
        """Return g + c g', c (R,) or 1."""

    def tensors(self) -> list[Tensor]:
        """Return the gradient written out, a tensor per parameter."""

    def descend(self, params: Sequence[Tensor], lr: float) -> None:
        """Take a step in place: w ← w − η g."""

    def accumulate(self, into: Sequence[Tensor], keep: float) -> None:
        """Do v ← keep · v + g in place."""


class FactoredGradient:
    """The gradient of a stack of linear layers: one pair (a, δ) per layer, parameters weight, bias, weight, …

    Without `biases` the parameters are weights alone.
    """

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], biases: bool = True) -> None:
        self.pairs, self.biases = pairs, biases

    def dot(self, other: "FactoredGradient") -> Tensor:
        """Σ_layers Σ ((a a'ᵀ + 1) ∘ (δ δ'ᵀ)), the 1 for the bias."""
        first = self.pairs[0][0]
        total = first.new_zeros(len(first))
        for (a, d), (a_other, d_other) in zip(self.pairs, other.pairs, strict=True):
            total += (torch.bmm(a, a_other.mT).add_(int(self.biases)) * torch.bmm(d, d_other.mT)).sum((1, 2))
        return total

    def plus(self, other: "FactoredGradient", c: Tensor | None = None) -> "FactoredGradient":
        joined = []
        for (a, d), (a_other, d_other) in zip(self.pairs, other.pairs, strict=True):
            scaled = d_other if c is None else c[:, None, None] * d_other
            joined.append((torch.cat([a, a_other], 1), torch.cat([d, scaled], 1)))
        return FactoredGradient(joined, self.biases)

    def tensors(self) -> list[Tensor]:
        if not self.biases:
            return [torch.bmm(d.mT, a) for a, d in self.pairs]
        return [g for a, d in self.pairs for g in (torch.bmm(d.mT, a), d.sum(1))]

    @torch.no_grad()
    def descend(self, params: Sequence[Tensor], lr: float) -> None:
        step = 1 + self.biases  # parameters of a layer
        for i, (a, d) in enumerate(self.pairs):
            params[step * i].baddbmm_(d.mT, a, alpha=-lr)
            if self.biases:
                params[step * i + 1].sub_(d.sum(1), alpha=lr)

    @torch.no_grad()
    def accumulate(self, into: Sequence[Tensor], keep: float) -> None:
        step = 1 + self.biases
        for i, (a, d) in enumerate(self.pairs):
            into[step * i].baddbmm_(d.mT, a, beta=keep)
            if self.biases:
                into[step * i + 1].mul_(keep).add_(d.sum(1))


class DenseGradient:
    """The gradient written out, a tensor (R, …) per parameter."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = list(parts)

    def dot(self, other: "DenseGradient") -> Tensor:
        pairs = zip(self.parts, other.parts, strict=True)
        return torch.stack([(g * h).flatten(1).sum(1) for g, h in pairs]).sum(0)

    def plus(self, other: "DenseGradient", c: Tensor | None = None) -> "DenseGradient":
        pairs = zip(self.parts, other.parts, strict=True)
        if c is None:
            return DenseGradient([g + h for g, h in pairs])
        return DenseGradient([g + c.view(-1, *[1] * (h.ndim - 1)) * h for g, h in pairs])

    def tensors(self) -> list[Tensor]:
        return list(self.parts)

    @torch.no_grad()
    def descend(self, params: Sequence[Tensor], lr: float) -> None:
        torch._foreach_add_(list(params), self.parts, alpha=-lr)

    @torch.no_grad()
    def accumulate(self, into: Sequence[Tensor], keep: float) -> None:
        into = list(into)
        torch._foreach_mul_(into, keep)
        torch._foreach_add_(into, self.parts)
