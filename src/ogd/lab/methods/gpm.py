"""GPM: Gradient Projection Memory (Saha, Garg and Roy, ICLR 2021).

The gradient of a linear layer is δᵀ a: its rows are combinations of the layer's inputs a. So if an update of [W b] is
orthogonal to the inputs that a task gave the layer, each with a 1 appended where there is a bias, the layer's outputs
for that task stay. Such inputs mostly lie in few directions. After each task the columns of an orthonormal M are
extended by the leading singular vectors of A − A M Mᵀ (A: the inputs of some examples) until

    ‖A M‖² ≥ ε ‖A‖²,

ε a threshold per layer. From then on [W b] moves by u − u M Mᵀ only. Under gradient descent this is the gradient's own
projection; under Adam it is the update that is projected, without which the guarantee would be lost.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.checks import ArgumentError
from ogd.lab import catalogue
from ogd.lab.catalogue.methods import BASIS_EXAMPLES, THRESHOLD, THRESHOLD_GROWTH, THRESHOLD_INPUT
from ogd.lab.methods.explicit_projection import ExplicitProjection
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.method import Constraint, Method
from ogd.lab.models.gradient import DenseGradient, FactoredGradient, Gradient
from ogd.lab.models.mlp import StackedMLP
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import Optimizer


class GPM(Method):
    """Keep a basis of each layer's inputs, from `basis_examples` of each task, and move only orthogonally to it.

    ε is `threshold_input` for the layer that sees the inputs and `threshold` for all others, more by
    `threshold_growth` with every task, and at most 1.

    Examples:
        >>> GPM(threshold=0.98).threshold_input
        0.95
    """

    name = "gpm"

    def __init__(
        self,
        threshold_input: float = THRESHOLD_INPUT.default,
        threshold: float = THRESHOLD.default,
        threshold_growth: float = THRESHOLD_GROWTH.default,
        basis_examples: int = BASIS_EXAMPLES.default,
    ) -> None:
        given = {
            "threshold_input": threshold_input,
            "threshold": threshold,
            "threshold_growth": threshold_growth,
            "basis_examples": basis_examples,
        }
        catalogue.METHODS["gpm"].check(**given)
        self.threshold_input, self.threshold, self.threshold_growth = threshold_input, threshold, threshold_growth
        self.basis_examples = basis_examples

    def begin(self, model: Stack, seed: int) -> None:
        if not isinstance(model, StackedMLP):
            raise ArgumentError("method", "gpm works on perceptrons only: it needs a StackedMLP")
        self.bases: list[list[Tensor]] = []  # M (in, r) of every layer and run, float64
        self.stacked: list[Tensor] = []  # of every layer, (R, in, r), in the model's precision

    @torch.no_grad()
    def end_task(self, finished: FinishedTask) -> None:
        model = finished.model
        assert isinstance(model, StackedMLP)
        tape, _ = model.passing(finished.draw(self.basis_examples).x)
        inputs = [_with_one(a).double() if model.biases else a.double() for a in tape]
        if not self.bases:
            self.bases = [[a.new_empty(a.shape[-1], 0) for _ in model.runs] for a in inputs]
        for i, a in enumerate(inputs):
            first = self.threshold if i else self.threshold_input
            threshold = min(first + self.threshold_growth * (finished.number - 1), 1.0)
            self.bases[i] = [extend_basis(M, A, threshold) for M, A in zip(self.bases[i], a, strict=True)]

    def constraint(self, optimizer: Optimizer) -> Constraint:
        model = optimizer.model
        self.stacked = [_side_by_side(layer).to(model.dtype) for layer in self.bases] if optimizer.linear else []
        if optimizer.linear or not self.bases:
            return Constraint(model)
        return ExplicitProjection(
            optimizer, Orthogonal(model, [_side_by_side(layer).to(model.dtype) for layer in self.bases]), 1
        )

    @torch.no_grad()
    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        if not self.stacked:
            return gradient
        assert isinstance(gradient, FactoredGradient)
        seen = [(_with_one(a) if gradient.biases else a, d) for a, d in gradient.pairs]
        pairs = [(_outside(a, M), d) for (a, d), M in zip(seen, self.stacked, strict=True)]
        if not gradient.biases:
            return FactoredGradient(pairs, biases=False)
        parts = [torch.bmm(d.mT, a) for a, d in pairs]  # (R, out, in + 1)
        return DenseGradient([part for both in parts for part in (both[..., :-1], both[..., -1])])


class Orthogonal:
    """Takes from an update what lies in the bases of the layers' inputs, M (R, in, r) each."""

    def __init__(self, model: Stack, bases: Sequence[Tensor]) -> None:
        self.names, self.bases = list(model.params), bases

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """From params, take u M Mᵀ in place; `opposite` is −u."""
        size = len(params) // len(self.bases)  # of a layer: its weight, and its bias where there is one
        for i, M in enumerate(self.bases):
            layer = slice(size * i, size * (i + 1))
            u = torch.cat([part if part.ndim == 3 else part[..., None] for part in opposite[layer]], -1)
            inside = torch.bmm(torch.bmm(u, M), M.mT)
            weight, *bias = params[layer]
            weight.add_(inside[..., : weight.shape[-1]])
            for b in bias:
                b.add_(inside[..., -1])


def extend_basis(M: Tensor, A: Tensor, threshold: float) -> Tensor:
    """Return M (in, r) with as many more columns as it takes that ‖A M‖² ≥ threshold · ‖A‖², A (n, in)."""
    rest = A - A @ M @ M.T
    total, left = A.square().sum(), rest.square().sum()
    missing = threshold * total - (total - left)
    if missing <= 0:
        return M
    _, S, Vt = torch.linalg.svd(rest, full_matrices=False)
    useful = int((S.square() > total * (max(rest.shape) * torch.finfo(S.dtype).eps) ** 2).sum())  # more than rounding
    wanted = int((S.square().cumsum(0) < missing).sum()) + 1
    Q: Tensor
    Q, _ = torch.linalg.qr(torch.cat([M, Vt[: min(wanted, useful)].T], 1))  # rounding left Vᵀ not quite orthogonal to M
    return Q


def _with_one(a: Tensor) -> Tensor:
    return torch.cat([a, a.new_ones(*a.shape[:-1], 1)], -1)


def _outside(a: Tensor, M: Tensor) -> Tensor:
    """Return a − a M Mᵀ."""
    return a - torch.bmm(torch.bmm(a, M), M.mT)


def _side_by_side(bases: Sequence[Tensor]) -> Tensor:
    """Stack bases (in, r) of different r: columns of zeros change nothing."""
    most = max(M.shape[1] for M in bases)
    return torch.stack([torch.cat([M, M.new_zeros(len(M), most - M.shape[1])], 1) for M in bases])
