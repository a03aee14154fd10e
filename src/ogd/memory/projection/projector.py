"""The projection P for the parameters of one model or a stack, from G in their columns and a way to apply K⁺."""

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ogd.long_work import warn_of_work
from ogd.memory.blocks.block import Block
from ogd.memory.projection.columns import Columns
from ogd.memory.projection.pseudo_inverse import (
    NEGLIGIBLE,
    SAFE,
    Cholesky,
    Softness,
    cutoff,
    inverse_lengths,
    shift,
    whitener,
)
from ogd.memory.projection.solve import Iterative, Triangular, Whitened
from ogd.memory.projection.store import Store
from ogd.memory.ranks.collective import gather_results, sum_over_ranks
from ogd.tensor_files import is_finite

DIRECT = 5_000  # directions up to which K is formed
SOFT_DIRECT = 10_000  # the same with a softness, where an eigendecomposition is never needed
SLOW = 1_000  # directions from which an eigendecomposition takes seconds
EXHAUSTED = 0.01  # share of an update below which hardly anything can be learned


class Projector:
    """P = I − Gᵀ K⁺ G for the parameters of `G`. If G is sharded, the methods are collective.

    Args:
        G: the rows.
        solve: applies K⁺.
        penalty: μ |g_i|² of each row. With D = diag(penalty), c = K⁺ s solves (K + D) c = s.
        dropped: the number of rows that count as zero.
    """

    def __init__(self, G: Columns, solve: Triangular | Whitened | Iterative, penalty: Tensor, dropped: int):
        self.G, self.solve, self.penalty, self.dropped = G, solve, penalty.to(G.dtype), dropped
        self.names, self.n = tuple(G.params), G.n
        self.last: tuple[Tensor, Tensor] | None = None  # |u|² − |P u|² and |u|² of the last update of a single model
        self._warned = False

    @property
    def nbytes(self) -> int:
        """The bytes that are needed in addition to the stored gradients."""
        return self.G.nbytes + self.solve.nbytes

    def block(self, *names: str) -> Block:
        """Return the block of these parameters, which must hold every row of G."""
        which = [self.names.index(name) for name in names]
        (found,) = [block for block, rows, those in self.G.terms if those == which and rows == slice(0, self.n)]
        return found

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """Subtract Gᵀ K⁺ G u from params in place; `opposite` is −u."""
        self.G.add_combination(params, self.coefficients(opposite))

    def coefficients(self, opposite: Sequence[Tensor]) -> Tensor:
        """Return c = −K⁺ G u, so that Gᵀ c corrects the update u; `opposite` is −u."""
        s = self.G.overlap(opposite)
        c = self.solve(s)
        if s.ndim == 1:
            norms = [norm.to(s) for norm in torch._foreach_norm(list(opposite))]
            square = torch.stack(norms).square().sum()
            total = sum_over_ranks(square)[0] if self.G.sharded == "columns" else square
            self.last = (c @ (s + self.penalty * c), total)
        return c

    def is_finite(self) -> bool:
        """Return False if the last update was not finite. Return True without waiting if a GPU has the answer."""
        return self.last is None or self.last[1].device.type != "cpu" or math.isfinite(float(self.last[1]))

    def not_finite(self, params: Sequence[Tensor]) -> str | None:
        """Return the name of a parameter that is not finite on this rank or another, or None. Collective if sharded."""
        own = next((name for name, p in zip(self.names, params, strict=True) if not is_finite(p)), None)
        if self.G.sharded != "columns":
            return own
        return next((name for name in gather_results(lambda: own, "check its weights") if name is not None), None)

    def check_dropped(self) -> bool:
        """Warn if some stored gradients count as zero, and return whether any do."""
        if self.dropped:
            warnings.warn(
                f"{self.dropped:,} of {self.n:,} stored gradients protect nothing: they are zero, or more than "
                f"{1 / NEGLIGIBLE:.0e} times smaller than the largest. Do those outputs depend on the protected "
                "parameters, and are they logits, not probabilities that have reached 0 or 1?",
                stacklevel=6,
            )
        return bool(self.dropped)

    def check_room(self) -> None:
        """Warn once if hardly anything is left of an update. Do not wait for a GPU to answer."""
        if self._warned or self.last is None or self.last[0].device.type != "cpu":
            return
        if (share := remaining_share(self.last)) <= EXHAUSTED:
            self._warned = True
            warnings.warn(
                f"{share:.2%} of an update is left after its projection: {self.n:,} directions leave hardly any room "
                "to learn; remember fewer examples per task (per_task=), project more softly (softness=) or use a "
                "larger model",
                stacklevel=4,
            )


def remaining_share(last: tuple[Tensor, Tensor]) -> float:
    """Return the share |P u| / |u| of an update; NaN if the update, or its square, is not finite."""
    removed, whole = (float(t) for t in last)
    if not (math.isfinite(removed) and math.isfinite(whole)):
        return math.nan
    return max(1 - removed / whole, 0.0) ** 0.5 if whole > 0 else 1.0


def projector_of(store: Store, params: Mapping[str, Tensor], softness: Softness = 0.0) -> Projector | None:
    """Return P for the parameters that have stored gradients; None if none of them has. Collective if sharded."""
    store.check_shapes({name: p.shape for name, p in params.items()})
    params = {name: p for name, p in params.items() if name in store.shapes}
    if not params:
        return None
    if not isinstance(softness, tuple) and softness < SAFE:  # rounding leaves more
        softness = 0.0
    G = Columns(store.only(params), params, len(store), store.sharded)
    solve: Triangular | Whitened | Iterative
    if not isinstance(softness, tuple) and G.n > (SOFT_DIRECT if softness else DIRECT) and not G.lead:
        squares = G.squares()
        solve = Iterative(G, inverse_lengths(squares), softness)
    else:
        squares = store.gram(params).diagonal(dim1=-2, dim2=-1)
        solve = _direct_solve(store, G, softness)
    # in some of its parameters a row may well be zero
    whole = not G.lead and len(params) == len(store.shapes)
    dropped = int((inverse_lengths(squares) == 0).sum()) if whole else 0
    return Projector(G, solve, shift(softness, squares) * squares, dropped)


def _direct_solve(store: Store, G: Columns, softness: Softness) -> Triangular | Whitened:
    """Return K⁺ by Cholesky, or by an eigendecomposition if some rows depend on others."""
    known = store.cholesky(G.params, softness)
    if known is not None:
        return Triangular(Cholesky(*(part.to(G.dtype) for part in known)))
    if G.n > SLOW and not G.lead:
        warn_of_work(f"K⁺ of {G.n:,} directions, some of which depend on others", 10 * G.n**3 / 1e9, 24 * G.n**2)
    return Whitened(whitener(store.gram(G.params), cutoff(G.n, G.dtype), softness).to(G.dtype))
