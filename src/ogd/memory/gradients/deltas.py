"""Uses of parameters → pieces of G, from the δ of each example after a check that no other example contributes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.weight_uses import Use

ROUNDING = 4  # units in the last place, of normal and of subnormal numbers


def pieces_of_uses(f: Tensor, found: Sequence[Use]) -> list[Piece]:
    """Compute δ of every use by a backward pass per output, and check that δ_i depends on example i alone."""
    if not found:
        return []
    B, k = f.shape
    edges = [use.edge for use in found]

    def deltas(g: Tensor) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(g, edges, retain_graph=True, allow_unused=True)

    passes = [deltas(f[:, j].sum()) for j in range(k)]
    sums = passes[0] if k == 1 else deltas(f.sum())
    v = probe_weights(B, f)
    probes = deltas((v.unsqueeze(1) * f).sum())
    pieces: list[Piece] = []
    for use, probe, total, *ds in zip(found, probes, sums, *passes, strict=True):
        if probe is None or total is None:  # the outputs do not depend on this use of the weight
            continue
        d = [torch.zeros_like(probe) if d is None else d for d in ds]
        pieces += _pieces(use, d, total, probe, v)
    return pieces


def probe_weights(B: int, f: Tensor) -> Tensor:
    """Return a power of two for each example, (B,), as different as the exponents of f's type allow."""
    powers = torch.randperm(B, generator=torch.Generator().manual_seed(B)) % (8 if f.dtype == torch.float16 else 64)
    return (2.0**powers).to(f)


def _pieces(use: Use, ds: Sequence[Tensor], total: Tensor, probe: Tensor, v: Tensor) -> list[Piece]:
    for axis in (0, 1):
        whole, weighted, *rest = [use.by_example(t, len(v), axis) for t in (total, probe, *ds)]
        if whole is not None and weighted is not None and is_per_example(whole, weighted, v):
            return use.pieces(torch.stack([t for t in rest if t is not None]), axis)
    return []


def is_per_example(d: Tensor, weighted: Tensor, v: Tensor) -> bool:
    """Return whether row i of d (B, ...) depends on example i alone, so that weighting the example scales it.

    A backward pass is linear, and powers of two cause no rounding, so on a CPU each number must scale by exactly v_i.
    On other devices sums may change their order, so the tolerance is relative to the largest number of the example.

    Examples:
        >>> d, v = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 2.0])
        >>> [is_per_example(d, torch.tensor(w), v) for w in ([[1.0, 2.0], [6.0, 8.0]], [[1.0, 4.0], [3.0, 8.0]])]
        [True, False]
    """
    v = v.view(-1, *[1] * (d.ndim - 1)).to(d.dtype)
    limits = torch.finfo(d.dtype)
    size = d.abs() if d.is_cpu else d.abs().amax(tuple(range(1, d.ndim)), keepdim=True)
    slack = (ROUNDING * limits.eps * size + ROUNDING * limits.smallest_normal * limits.eps) * v
    return bool(((weighted - v * d).abs() <= slack).all()) or not bool(d.isfinite().all())  # `check_finite` reports NaN
