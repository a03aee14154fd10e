"""K⁺ s for many directions without K: conjugate gradients whose products are overlap and combine.

    K c = s,    K v = G (Gᵀ v)

Rows are scaled to length 1. The preconditioner knows K from m sampled rows (Nyström): with F = K_·m W_mᵀ,
K ≈ F Fᵀ + σ I, where σ is what the sample leaves of the diagonal. Its inverse is (I − F (σ I + FᵀF)⁻¹ Fᵀ) / σ.
The residual s − K c is what the projected update still changes of the remembered outputs, to first order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

TOLERANCE = 1e-3  # of the change of the remembered outputs, to first order, that may remain
MOST = 500  # iterations
JITTER = 1e-9

Product = Callable[[Tensor], Tensor]


def conjugate_gradients(
    product: Product, s: Tensor, precondition: Product, tolerance: float = TOLERANCE, most: int = MOST
) -> tuple[Tensor, int]:
    """c with |s − K c| ≤ tolerance |s|, and the iterations it took.

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
        if float(r.norm()) <= goal:
            return c, step
        q = product(p)
        alpha = gamma / (p @ q)
        c, r = c + alpha * p, r - alpha * q
        z = precondition(r)
        before, gamma = gamma, r @ z
        p = z + gamma / before * p
    return c, most


class Nystrom:
    """The preconditioner, from unit rows: C = K of all rows with m sampled ones (n, m), and the sample's own K."""

    def __init__(self, C: Tensor, sampled: Tensor):
        m = len(sampled)
        eye = torch.eye(m, dtype=C.dtype, device=C.device)
        lam, V = torch.linalg.eigh(sampled)
        keep = lam > JITTER * lam[-1]
        F = C @ (V[:, keep] * lam[keep].rsqrt())  # (n, m)
        self.sigma = max(float((1 - F.square().sum(1)).clamp(min=0).mean()), JITTER)
        H = torch.linalg.inv(torch.linalg.cholesky(F.mT @ F + self.sigma * eye[: F.shape[1], : F.shape[1]]))
        self.E = F @ H.mT  # (n, m): F (σ I + FᵀF)⁻¹ Fᵀ = E Eᵀ

    def __call__(self, r: Tensor) -> Tensor:
        z: Tensor = (r - self.E @ (self.E.mT @ r)) / self.sigma
        return z
