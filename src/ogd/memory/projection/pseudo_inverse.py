"""Pure functions for the pseudo-inverse K⁺ of the Gram matrix, exact or soft.

    K = G Gᵀ                             (..., n, n), float64
    S = diag(1 / |g_i|)                  scales the rows of G to length 1; a zero row stays zero
    K⁺ = S (S K S + μ I)⁺ S              with the softness μ ≥ 0
       = S L⁻ᵀ L⁻¹ S                     by Cholesky, for every μ > 0 and where no row depends on others
       = Wᵀ W                            by an eigendecomposition, for any K
    P = I − Gᵀ K⁺ G

For μ = 0, P is the projection onto the directions that are still free, and W G has orthonormal rows: Gram–Schmidt's
basis, never formed. For μ > 0, remembered outputs may change a little if that leaves more of the update:

    P u = argmin_v  ½ |v − u|² + |S G v|² / 2μ

Leading axes `...` are for stacks of runs, each with its own K.
"""

from typing import NamedTuple

import torch
from torch import Tensor

Softness = float | tuple[float, ...]  # μ, or one of each run of a stack

NEGLIGIBLE = 1e-12  # a gradient this much smaller than the largest counts as zero
SAFE = 2e-10  # a relative eigenvalue of K above every cut-off


def cutoff(n: int, dtype: torch.dtype) -> float:
    """Return the relative eigenvalue of K below which a direction counts as dependent on the others.

    Rounding in K itself is a few n ε of float64. In float32 an update's overlap has an error ε that K⁺
    multiplies by the condition of G, so directions beyond a condition of 10⁵ add more noise than protection.

    Examples:
        >>> cutoff(100, torch.float64) < cutoff(100, torch.float32)
        True
    """
    rounding = 10 * n * torch.finfo(torch.float64).eps
    return rounding if dtype == torch.float64 else max(rounding, 1e-10)


def shift(softness: Softness, like: Tensor) -> Tensor:
    """Return μ as (1,), or as (R, 1) for the runs of a stack.

    Examples:
        >>> shift((0.1, 0.2), torch.zeros(2, 3, 3)).shape
        torch.Size([2, 1])
    """
    return torch.tensor(softness, dtype=like.dtype, device=like.device).unsqueeze(-1)


def whitener(K: Tensor, rtol: float, softness: Softness = 0.0) -> Tensor:
    """Return W (..., r, n) with K⁺ = Wᵀ W by an eigendecomposition, for any K.

    Rows of G are scaled to length 1 first, so that only dependent rows are cut off, not small ones. In a stack r is
    the largest rank, and a run of a lower rank has zero rows.

    Examples:
        >>> G = torch.tensor([[3.0, 0, 0], [3.0, 0, 0], [0, 0, 0], [1, 1, 0]], dtype=torch.float64)
        >>> W = whitener(G @ G.mT, rtol=1e-12)
        >>> W.shape
        torch.Size([2, 4])
        >>> torch.allclose((W @ G) @ (W @ G).mT, torch.eye(2, dtype=torch.float64))
        True
    """
    scale = scales(K)
    lam, V = torch.linalg.eigh(scale.unsqueeze(-1) * K * scale.unsqueeze(-2))  # ascending
    keep = _independent(lam, rtol)
    W: Tensor = torch.where(keep, (lam + shift(softness, K)).rsqrt(), 0).unsqueeze(-1) * V.mT * scale.unsqueeze(-2)
    r = int(keep.sum(-1).max()) if K.numel() else 0
    return W[..., K.shape[-1] - r :, :]


class Cholesky(NamedTuple):
    """L and S with S K S + μ I = L Lᵀ."""

    L: Tensor  # (..., n, n), lower triangular
    scale: Tensor  # (..., n), the diagonal of S

    @property
    def nbytes(self) -> int:
        return self.L.nbytes + self.scale.nbytes


def cholesky(K: Tensor, known: Cholesky | None = None, softness: Softness = 0.0) -> Cholesky | None:
    """Return L by Cholesky; None if Cholesky fails, or if μ = 0 and K is badly conditioned.

    If `known` is the factor of the first rows, only the new rows are computed:

        B L_oldᵀ = S K_new,old S,    C Cᵀ = S K_new S + μ I − B Bᵀ,    L = [L_old 0; B C].

    This takes a fraction of the time of `whitener`, and less if few rows are new.

    Examples:
        >>> G = torch.randn(5, 9, dtype=torch.float64)
        >>> K = G @ G.mT
        >>> extended = cholesky(K, cholesky(K[:3, :3]))
        >>> s = torch.randn(5, dtype=torch.float64)
        >>> torch.allclose(solve(extended, s), K.inverse() @ s)
        True
    """
    m, scale, mu = 0 if known is None else known.scale.shape[-1], scales(K), shift(softness, K)
    exact = not bool(mu.any())
    if exact and not bool((scale > 0).all()):
        return None
    new = scale[..., m:, None]
    corner = new * K[..., m:, m:] * new.mT
    corner.diagonal(dim1=-2, dim2=-1).add_(mu)
    if known is not None:
        scale = torch.cat([known.scale, scale[..., m:]], -1)
        across = new * K[..., m:, :m] * known.scale.unsqueeze(-2)
        B = torch.linalg.solve_triangular(known.L.mT, across, upper=True, left=False)
        corner -= B @ B.mT
    C, failed = torch.linalg.cholesky_ex(corner)
    if bool(failed.any()):
        return None
    L = C
    if known is not None:
        L = torch.zeros_like(K)
        L[..., :m, :m], L[..., m:, :m], L[..., m:, m:] = known.L, B, C
    return Cholesky(L, scale) if not exact or _is_well_conditioned(K, L, scale) else None


def solve(known: Cholesky, s: Tensor) -> Tensor:
    """Return c = K⁺ s = S L⁻ᵀ L⁻¹ S s for s (..., n)."""
    y = torch.linalg.solve_triangular(known.L, (known.scale * s).unsqueeze(-1), upper=False)
    c: Tensor = torch.linalg.solve_triangular(known.L.mT, y, upper=True).squeeze(-1)
    return known.scale * c


def _is_well_conditioned(K: Tensor, L: Tensor, scale: Tensor) -> bool:
    """Return whether each eigenvalue of S K S is more than SAFE of the largest one.

    The mean of |L⁻¹ z|² over random z estimates the trace of (S K S)⁻¹, which is at least 1 / the smallest eigenvalue.
    That the mean over 32 of them is below a quarter of the trace has a probability of 5·10⁻⁶ at most.
    """
    z = torch.randn(K.shape[-1], 32, dtype=K.dtype, generator=torch.Generator().manual_seed(0)).to(K.device)
    trace = torch.linalg.solve_triangular(L, z, upper=False).square().sum() / 32
    most = scale * (K.abs() @ scale)  # row sums, at least the largest eigenvalue
    return bool(4 * SAFE * most.amax() * trace < 1)


def rank(K: Tensor, rtol: float) -> Tensor:
    """Return the number of independent rows of G, (...), without computing W.

    Examples:
        >>> G = torch.tensor([[3.0, 0], [6.0, 0], [0, 0]], dtype=torch.float64)
        >>> rank(G @ G.mT, rtol=1e-12)
        tensor(1)
    """
    scale = scales(K)
    lam = torch.linalg.eigvalsh(scale.unsqueeze(-1) * K * scale.unsqueeze(-2))
    return _independent(lam, rtol).sum(-1)


def scales(K: Tensor) -> Tensor:
    """Return 1 / |g_i| for each row of G, (..., n), and 0 for rows that count as zero."""
    return inverse_lengths(K.diagonal(dim1=-2, dim2=-1))


def inverse_lengths(squares: Tensor) -> Tensor:
    """Return 1 / |g_i| from |g_i|² of each row, (..., n), and 0 for rows that count as zero."""
    norms = squares.clamp(min=0).sqrt()
    floor = NEGLIGIBLE * norms.amax(-1, keepdim=True) if norms.shape[-1] else norms
    return torch.where(norms > floor, 1 / norms, 0)


def _independent(lam: Tensor, rtol: float) -> Tensor:
    """Return a mask of the ascending eigenvalues (..., n) that are not cut off."""
    return lam > rtol * lam[..., -1:].clamp(min=torch.finfo(lam.dtype).tiny)


def coefficients(W: Tensor, s: Tensor) -> Tensor:
    """Return c = K⁺ s = Wᵀ (W s), so that Gᵀ c is the part of an update with overlap s that G spans.

    Examples:
        >>> coefficients(torch.eye(2), torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    if W.ndim == 2:
        return torch.mv(W.mT, torch.mv(W, s))
    # one run at a time: W[r] @ s[r] beats bmm for one column on the CPU
    pairs = zip(W.flatten(0, -3), s.flatten(0, -2), strict=True)
    return torch.stack([w.mT @ (w @ x) for w, x in pairs]).view(s.shape)
