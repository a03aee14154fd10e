"""Detection of weights that were trained without protection, or that were not those of the memory.

Under protection G u = 0, up to rounding, for the displacement u since the last task was remembered. Any other change of
the weights shows in the cosines of u with the stored gradients, |g_i · u| / (‖g_i‖ ‖u‖), which are about 1 / √p or
larger if p weights move freely. A softness μ leaves |S G P u| ≤ ½ √μ |u|, so the mean square of the cosines of P u
with n gradients is at most μ |u|² / (4 n |P u|²).

A file does not hold the weights w. It holds g_i · w for some rows i, and a sketch of w: sums of the weights in groups,
with random signs. Both are linear in w, so the differences between two models give g_i · u and, roughly, ‖u‖.
"""

import hashlib
import math
import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ogd.memory.projection.pseudo_inverse import inverse_lengths
from ogd.memory.projection.store import Store
from ogd.memory.ranks.collective import sum_over_ranks
from ogd.memory.ranks.sharded_parameters import whole

SAMPLED_ROWS = 16  # rows of G
# The effect of rounding alone: the cosines that it reaches in a long training, and how far it moves the weights in any
# direction, as a share of ‖w‖, if the steps are hardly larger.
ROUNDING = {torch.bfloat16: (0.2, 2**-5), torch.float16: (0.05, 2**-8)}
ROUNDING_ELSE = (0.005, 2**-19)
SOFT = 3  # times √(μ / n): the largest cosine of a soft projection if it leaves a sixth of an update or more
GROUPS = 64  # groups of a sketch, which give ‖u‖ to about a tenth
PART = 2**22  # weights that are summed at a time
ROUNDED = 2**-8  # share of ‖w‖ that a checkpoint in half precision may lose by rounding
ALIKE = 0.5  # the least cosine of sketches of related weights; that of unrelated ones is 0 ± 0.13

Weights = Mapping[str, Tensor]


def outputs_moved(store: Store, params: Weights, before: Weights, softness: float) -> bool:
    """Return whether the change of the weights has moved remembered outputs, to first order, more than protection does.

    Rounding and softness explain small changes.
    """
    u = {name: params[name].detach() - w for name, w in before.items() if _comparable(params.get(name), w)}
    parts = store.sharded == "columns"
    moved = norm(u, parts)
    weights = {name: before[name] for name in u}
    return bool(moved) and largest_overlap(store, u) > moved * cosine_tolerance(store, weights, moved, softness)


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """A summary of the weights for a file: g_i · w for some rows of G, a sketch of the matrices and one of the rest."""

    along: Tensor  # (rows,): g_i · w
    sketch: Tensor  # (2, GROUPS)
    names: str  # a digest of the weights' names and shapes

    @classmethod
    def of(cls, store: Store, weights: Weights) -> Self:
        """Return the fingerprint of the weights that are floating-point numbers and initialised."""
        weights = {name: w for name, w in weights.items() if w.is_floating_point() and not w.is_meta and not is_lazy(w)}
        shapes = sorted((name, tuple(w.shape)) for name, w in weights.items())
        names = hashlib.sha256(repr(shapes).encode()).hexdigest()
        return cls(sampled_overlaps(store, weights)[0], sketch(weights), names)

    @classmethod
    def from_state(cls, stored: Any, rows: int) -> Self | None:
        """Return a saved fingerprint, or None; raise a ValueError if it does not fit a store of `rows` rows."""
        if stored is None:
            return None
        try:
            found = [torch.tensor(stored[key], dtype=torch.float64) for key in ("along", "sketch")]
            names = str(stored["names"])
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"the fingerprint of the weights is malformed: {error!r}") from error
        shapes = [tuple(t.shape) for t in found]
        if shapes != [(len(sample_rows(rows)),), (2, GROUPS)] or not all(bool(t.isfinite().all()) for t in found):
            raise ValueError(f"the fingerprint of the weights is malformed: shapes {shapes}, or numbers not finite")
        return cls(found[0], found[1], names)

    def to_state(self) -> dict[str, Any] | None:
        """Return the fingerprint as JSON values; None if the weights are not finite."""
        if not all(bool(t.isfinite().all()) for t in (self.along, self.sketch)):
            return None
        return {"along": self.along.tolist(), "sketch": self.sketch.tolist(), "names": self.names}

    def differs(self, store: Store, weights: Weights, softness: float = 0.0) -> bool:
        """Return whether weights are unrelated to these, or were not reached from them under protection.

        Without rows only the first can be checked, and neither for weights of other names or shapes.
        """
        now = Fingerprint.of(store, weights)
        moved = float((now.sketch - self.sketch).norm())
        if now.names != self.names or not moved > ROUNDED * float(self.sketch.norm()):
            return False
        lengths = (now.along - self.along).abs() * inverse_lengths(sampled_overlaps(store, weights)[1])
        tolerance = cosine_tolerance(store, weights, moved, softness)
        leaks = len(lengths) > 0 and float(lengths.max()) > moved * tolerance
        alike = torch.nn.functional.cosine_similarity(now.sketch[0], self.sketch[0], dim=0)
        return leaks or bool(self.sketch[0].any() and alike < ALIKE)


def warn_of_other_weights(why: str) -> None:
    """Warn that a memory was loaded to a model with other weights than those it was saved with."""
    warnings.warn(
        f"the memory was saved with other weights than this model has, so {why}: load the model's weights first, "
        "then the memory",
        stacklevel=3,
    )


def cosine_tolerance(store: Store, weights: Weights, moved: float, softness: float) -> float:
    """Return the largest cosine that rounding and softness can explain if the weights have moved by `moved`.

    The weights may be the parts of a rank, as the store's columns are.
    """
    known = {name: ROUNDING.get(w.dtype, ROUNDING_ELSE) for name, w in weights.items()}
    parts = store.sharded == "columns"
    anywhere = norm({name: w.detach() * known[name][1] for name, w in weights.items()}, parts)
    soft = SOFT * math.sqrt(softness / max(len(store), 1))
    return max(cosine for cosine, _ in known.values()) + anywhere / moved + soft


def norm(tensors: Weights, parts: bool = False) -> float:
    """Return ‖u‖ over all tensors, of which each rank may hold a part. Collective if the ranks hold parts."""
    square = sum(float(whole(t).double().square().sum()) for t in tensors.values())
    return math.sqrt(sum_over_ranks(torch.tensor(square, dtype=torch.float64))[0] if parts else square)


def largest_overlap(store: Store, u: Weights) -> float:
    """Return the largest |g · u| / ‖g‖ of some rows g of G, without rows that count as zero."""
    overlaps, squares = sampled_overlaps(store, u)
    return float((overlaps.abs() * inverse_lengths(squares)).max()) if len(squares) else 0.0


def sampled_overlaps(store: Store, u: Weights) -> tuple[Tensor, Tensor]:
    """Return g · u and ‖g‖² for some rows g of G, in float64."""
    rows = sample_rows(len(store))
    overlaps, squares = torch.zeros(2, len(rows), dtype=torch.float64)
    for piece in store.only(u):
        mine = [k for k, i in enumerate(rows) if piece.start <= i < piece.stop]
        d = [whole(u[name]).cpu().double() for name in piece.names] if mine else []
        for k in mine:
            i = rows[k] - piece.start
            g = piece.block[i : i + 1].to(torch.device("cpu"), torch.float64)
            overlaps[k] += g.overlap(d)[0]
            squares[k] += g.gram(g)[0, 0]
    if store.sharded == "columns":
        overlaps, squares = sum_over_ranks(overlaps, squares)
    return overlaps, squares


def sample_rows(n: int) -> list[int]:
    """Return the numbers of some of n rows, spread evenly.

    Examples:
        >>> sample_rows(3), sample_rows(31)[:4]
        ([0, 1, 2], [0, 2, 4, 6])
    """
    return sorted({round(j * (n - 1) / (SAMPLED_ROWS - 1)) for j in range(SAMPLED_ROWS)}) if n else []


def sketch(weights: Weights) -> Tensor:
    """Return sums of the matrices' weights in groups, and of the other weights, with random signs, (2, GROUPS).

    Collective if FSDP divides the weights.
    """
    sums = torch.zeros(2, GROUPS, dtype=torch.float64)
    for name, w in weights.items():
        draws = random.Random(name)
        for part in whole(w).flatten().split(PART):
            n = len(part)
            signs = torch.frombuffer(bytearray(draws.randbytes(n)), dtype=torch.int8) < 0
            terms = torch.where(signs, -1.0, 1.0).double() * part.cpu().double()
            sums[int(w.ndim < 2)] += torch.nn.functional.pad(terms, (0, -n % GROUPS)).view(-1, GROUPS).sum(0)
    return sums


def _comparable(p: Tensor | None, w: Tensor) -> bool:
    return p is not None and (p.shape, p.device, p.dtype) == (w.shape, w.device, w.dtype)
