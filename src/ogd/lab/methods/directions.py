"""Which directions OGD keeps of a finished task, where it has the gradients of more examples than it may keep.

drawn        the gradients of examples as they were drawn
leverage     the candidates with the largest ridge leverage scores (Cohen, Musco and Musco, 2017),

                 l_i = [K (K + μ I)⁻¹]_ii,    μ = Σ_{j>k} λ_j / k

pca          the k leading eigenvectors of K, as combinations Vᵀ G: no other k directions hold more of Σ |g_i|²
sketch       Frequent Directions (Liberty, 2013): a sketch B of all gradients so far has at most k rows. With every task
             its candidates are added as rows, and of B's singular values only √max(σ_j² − σ²_{k+1}, 0) are left, so
             that for every update u, 0 ≤ |G u|² − |B u|² ≤ Σ_tasks σ²_{k+1}

For leverage and pca, K is that of the candidates less what is protected already. All of this is a function of K alone.
"""

import torch
from torch import Tensor

from ogd.memory.projection.pseudo_inverse import cutoff, whitener


def spectrum(K: Tensor, protected: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return λ (R, m) and V (R, m, m), the largest first, of the rows of G after the `protected` first ones.

    What lies in the span of those does not count: K₂₂ − K₂₁ K₁₁⁺ K₁₂. An eigenvalue that is rounding is zero.
    """
    new = K[..., protected:, protected:]
    W = whitener(K[..., :protected, :protected], cutoff(protected, dtype))
    inside = W @ K[..., :protected, protected:]  # (R, rank, m)
    lam, V = torch.linalg.eigh(new - inside.mT @ inside)  # ascending
    longest = new.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)  # squared
    lam = torch.where(lam > cutoff(K.shape[-1], dtype) * longest, lam, 0)
    return lam.flip(-1), V.flip(-1)


def leverage(lam: Tensor, V: Tensor, k: int) -> Tensor:
    """Return how much of each candidate the k leading directions hold that no other candidate does, l (R, m).

    Examples:
        >>> leverage(torch.tensor([4.0, 1.0, 1.0]), torch.eye(3), 1)
        tensor([0.6667, 0.3333, 0.3333])
    """
    mu = lam[..., k:].sum(-1, keepdim=True) / k
    shares = torch.where(lam > 0, lam / (lam + mu), 0)
    return (V.square() * shares.unsqueeze(-2)).sum(-1)


def leading(lam: Tensor, V: Tensor, k: int) -> Tensor:
    """Return C (R, ≤ k, m): C G are the k leading directions, and rows of zeros beyond the rank."""
    return _weighed(torch.where(lam > 0, lam.rsqrt(), 0), V, k)


def sketch(lam: Tensor, V: Tensor, k: int) -> Tensor:
    """Return C (R, ≤ k, n): C G is the sketch of G's n rows.

    Examples:
        >>> sketch(torch.tensor([4.0, 3.0, 1.0]), torch.eye(3), 1)
        tensor([[0.5000, 0.0000, 0.0000]])
    """
    lost = lam[..., k : k + 1] if lam.shape[-1] > k else 0
    return _weighed(torch.where(lam > 0, (1 - lost / lam).clamp(min=0).sqrt(), 0), V, k)


def _weighed(weights: Tensor, V: Tensor, k: int) -> Tensor:
    return weights[..., :k, None] * V[..., :k].mT
