"""Noticing weights that moved where they must not: somebody trained them without a protection.

Under protection G u = 0 for the displacement u since the last task was remembered, up to rounding. So whoever moved
the weights, and however, shows in the cosines of u with the stored gradients:  |g_i · u| / (‖g_i‖ ‖u‖).
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ogd.memory.blocks.precision import working
from ogd.memory.projection.store import Store

LOOKED_AT = 16  # rows of G
TOLERATED = {torch.bfloat16: 0.2, torch.float16: 0.05}  # their rounding alone reaches a half of it
TOLERATED_ELSE = 0.02


class Watch:
    """The weights as they were when the last task was remembered, and whether all since was under protection."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self._warned = False

    def begin(self, params: Mapping[str, Tensor], names: Mapping[str, Any]) -> None:
        """Count from the present weights."""
        self.weights = {name: p.detach().clone() for name, p in params.items() if name in names}

    def check(self, store: Store, params: Mapping[str, Tensor]) -> None:
        """Warn once if remembered outputs moved, to first order."""
        if self._warned or not self.weights:
            return
        u = {name: params[name] - w for name, w in self.weights.items() if _comparable(params.get(name), w)}
        if u and leaked(store, u) > max(TOLERATED.get(d.dtype, TOLERATED_ELSE) for d in u.values()):
            self._warned = True
            warnings.warn(
                "protected weights have moved without protection since the last task was remembered, and remembered "
                "outputs with them: was memory.protect(optimizer) left out for a new optimizer, or were other weights "
                "loaded?",
                stacklevel=4,
            )


@torch.no_grad()
def leaked(store: Store, u: Mapping[str, Tensor]) -> float:
    """The greatest cosine of u with a stored gradient, of some rows spread evenly over G."""
    size = sum(float(d.double().square().sum()) for d in u.values()) ** 0.5
    if not size:
        return 0.0
    n, greatest = len(store), 0.0
    pieces = store.only(u)
    for i in sorted({round(j * (n - 1) / (LOOKED_AT - 1)) for j in range(LOOKED_AT)}):
        overlap, length = 0.0, 0.0
        for piece in pieces:
            if piece.start <= i < piece.stop:
                g = piece.block[i - piece.start : i - piece.start + 1]
                overlap += float(g.overlap([u[name].to(g.device, working(u[name].dtype)) for name in piece.names]))
                length += float(g.gram(g))
        if length:
            greatest = max(greatest, abs(overlap) / (length**0.5 * size))
    return greatest


def _comparable(p: Tensor | None, w: Tensor) -> bool:
    return p is not None and (p.shape, p.device, p.dtype) == (w.shape, w.device, w.dtype)
