"""Uses of parameters → pieces of G: the δ of each example, and the proof that it is that example's alone."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ogd.memory.algebra.store import Piece
from ogd.memory.gradients.calls import Calls, layer_uses
from ogd.memory.gradients.uses import Use, weight_uses


def sources(f: Tensor, calls: Calls, names: Mapping[int, str], uses: Counter[int]) -> list[Use]:
    """The uses from which the parameters are read: of layers in the table first, then of the graph."""
    found = list(layer_uses(calls, names, uses, len(f)))
    covered = {name for use in found for name in use.names}
    rest = {i: name for i, name in names.items() if name not in covered}
    return found + list(weight_uses(f, rest, uses))


def read(f: Tensor, found: Sequence[Use]) -> list[Piece]:
    """One backward pass per output gives every use its δ; one more shows that δ_i is of example i alone."""
    if not found:
        return []
    B, k = f.shape
    edges = [use.edge for use in found]
    passes = [torch.autograd.grad(f[:, j].sum(), edges, retain_graph=True, allow_unused=True) for j in range(k)]
    # weigh example i by v_i, a power of two: its δ must grow by exactly v_i
    powers = torch.randperm(B, generator=torch.Generator().manual_seed(B)) % 8
    v = (2.0**powers).to(f)  # (B,)
    probes = torch.autograd.grad((v.unsqueeze(1) * f).sum(), edges, retain_graph=True, allow_unused=True)
    pieces: list[Piece] = []
    for use, probe, *ds in zip(found, probes, *passes, strict=True):
        if probe is None:  # its output is not used, so its weight is used elsewhere
            continue
        d = [torch.zeros_like(probe) if d is None else d for d in ds]
        pieces += _pieces(use, d, probe, v)
    return pieces


def _pieces(use: Use, ds: Sequence[Tensor], probe: Tensor, v: Tensor) -> list[Piece]:
    for axis in (0, 1):
        arranged = [use.by_example(t, len(v), axis) for t in (probe, *ds)]
        first, *rest = arranged
        if first is None:
            continue
        d = torch.stack([t for t in rest if t is not None])
        if _belongs(d, first, v):
            return use.pieces(d, axis)
    return []


def _belongs(d: Tensor, probe: Tensor, v: Tensor) -> bool:
    """Whether weighing the examples by v weighs their δ alike; d is (k, B, ...), the probe its sum over k."""
    weighted = d.sum(0) * v.view(-1, *[1] * (probe.ndim - 1))
    slack = torch.finfo(d.dtype).eps ** 0.5 * d.abs().amax() * v.amax()
    return bool(((weighted - probe).abs() <= slack).all() | ~probe.isfinite().all())  # NaN is found later
