"""Three ways to compute c = K⁺ s, with the softness μ.

    Triangular  K⁺ = S L⁻ᵀ L⁻¹ S (`pseudo_inverse`)
    Whitened    K⁺ = Wᵀ W, where μ = 0 and rows depend on others
    Iterative   (K + μ I) c = s by conjugate gradients with K v = G (Gᵀ v), for many rows, without forming K

The rows of G are scaled to length 1. The preconditioner of `Iterative` approximates K from m sampled rows (Nyström).
With F = K_·m W_mᵀ, K + μ I ≈ F Fᵀ + σ I, where σ − μ is the mean of the diagonal of K − F Fᵀ. Its inverse is
(I − F (σ I + FᵀF)⁻¹ Fᵀ) / σ. The residual s − (K + μ I) c is the change of the remembered outputs, to first order, that
the projected update causes beyond what the softness allows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ogd.long_work import warn_of_work
from ogd.memory.blocks.block import working_dtype
from ogd.memory.projection.columns import Columns
from ogd.memory.projection.pseudo_inverse import Cholesky, coefficients, solve

TOLERANCE = 1e-3  # share of the first-order change of the remembered outputs that may remain
MAX_ITERATIONS = 500
JITTER = 1e-9
SAMPLE = 2_000  # rows from which the preconditioner is made

Product = Callable[[Tensor], Tensor]


class Triangular:
    """Compute K⁺ s by two triangular solves."""

    def __init__(self, known: Cholesky):
        self.known = known

    def __call__(self, s: Tensor) -> Tensor:
        return solve(self.known, s)

    @property
    def nbytes(self) -> int:
        return self.known.nbytes


class Whitened:
    """Compute K⁺ s with K⁺ = Wᵀ W."""

    def __init__(self, W: Tensor):
        self.W = W  # (..., r, n)

    def __call__(self, s: Tensor) -> Tensor:
        return coefficients(self.W, s)

    @property
    def nbytes(self) -> int:
        return self.W.nbytes


class Iterative:
    """Compute K⁺ s by products with G, without K. Collective if G is sharded."""

    def __init__(self, G: Columns, scale: Tensor, softness: float = 0.0):
        self.G, self.softness, self.iterations = G, softness, 0
        step = max(G.n // 16, 1)
        sample = [slice(a, min(a + max(SAMPLE // 16, 1), G.n)) for a in range(0, G.n, step)]
        width = sum(piece.block.nbytes for piece in G.pieces) / G.n / 4
        rows = sum(part.stop - part.start for part in sample)
        warn_of_work(f"preparing {G.n:,} directions", G.n * rows * width / 1e9, G.n * rows * 12)
        C = torch.cat([G.gram(part) for part in sample], 1)  # (n, m)
        index = torch.cat([torch.arange(part.start, part.stop) for part in sample]).to(C.device)
        C = scale.unsqueeze(1) * C * scale[index]
        self.precondition = Nystrom(C, C[index], G.dtype, softness)
        self.scale = scale.to(G.dtype)

    def __call__(self, s: Tensor) -> Tensor:
        zeros = [torch.zeros_like(p, dtype=working_dtype(p.dtype)) for p in self.G.params.values()]

        def product(v: Tensor) -> Tensor:
            torch._foreach_zero_(zeros)
            self.G.add_combination(zeros, (self.scale * v).to(self.G.dtype))
            return self.scale * self.G.overlap(zeros) + self.softness * v

        c, self.iterations = conjugate_gradients(product, self.scale * s, self.precondition)
        return (self.scale * c).to(self.G.dtype)

    @property
    def nbytes(self) -> int:
        return self.precondition.E.nbytes


def conjugate_gradients(
    product: Product, s: Tensor, precondition: Product, tolerance: float = TOLERANCE, most: int = MAX_ITERATIONS
) -> tuple[Tensor, int]:
    """Return c with |s − K c| ≤ tolerance |s|, and the number of iterations.

    Examples:
        >>> K = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
        >>> c, steps = conjugate_gradients(lambda v: K @ v, torch.tensor([3.0, 4.0], dtype=torch.float64), lambda r: r)
        >>> c, steps
        (tensor([1.0000, 1.0000], dtype=torch.float64), 2)
    """
    c, r = torch.zeros_like(s), s.clone()
    goal = tolerance * float(s.norm())
    z = precondition(r)
    p, gamma = z, r @ z
    for step in range(most):
        if not float(r.norm()) > goal:  # also if it is NaN
            return c, step
        q = product(p)
        alpha = gamma / (p @ q)
        c, r = c + alpha * p, r - alpha * q
        z = precondition(r)
        before, gamma = gamma, r @ z
        p = z + gamma / before * p
    return c, most


class Nystrom:
    """The preconditioner from K of all unit rows with m sampled ones, C (n, m), and from K of the sample."""

    def __init__(self, C: Tensor, sampled: Tensor, dtype: torch.dtype, softness: float = 0.0):
        lam, V = torch.linalg.eigh(sampled)
        keep = lam > JITTER * lam[-1]
        F = C @ (V[:, keep] * lam[keep].rsqrt())  # (n, m)
        self.sigma = max(float((1 - F.square().sum(1)).clamp(min=0).mean()), JITTER) + softness
        eye = torch.eye(F.shape[1], dtype=C.dtype, device=C.device)
        H = torch.linalg.inv(torch.linalg.cholesky(F.mT @ F + self.sigma * eye))
        self.E: Tensor = (F @ H.mT).to(dtype)  # (n, m): F (σ I + FᵀF)⁻¹ Fᵀ = E Eᵀ

    def __call__(self, r: Tensor) -> Tensor:
        z: Tensor = (r - self.E @ (self.E.mT @ r)) / self.sigma
        return z
