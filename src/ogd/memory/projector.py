"""P for the parameters of one model or a stack: G's blocks and K's whitener, in the precision of the weights."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ogd.memory.blocks import Block, Factored
from ogd.memory.pseudo_inverse import coefficients, cutoff, whitener
from ogd.memory.ranks import summed
from ogd.memory.store import Piece, Store


def working(dtype: torch.dtype) -> torch.dtype:
    """The precision in which updates of a parameter are projected: half types in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Projector:
    """P for some parameters, given the pieces of G in their columns and their K; sharded, this rank's pieces."""

    def __init__(self, pieces: Iterable[Piece], params: Mapping[str, Tensor], K: Tensor, sharded: bool = False):
        self.names = tuple(params)
        self.n, self.sharded = K.shape[-1], sharded
        at = {name: i for i, name in enumerate(params)}
        self._terms = []
        for piece in pieces:
            first = params[piece.names[0]]
            block = piece.block.to(first.device, working(first.dtype)).laid_out()
            self._terms.append((block, slice(piece.start, piece.stop), [at[name] for name in piece.names]))
        dtypes = {working(p.dtype) for p in params.values()}
        self._dtype = torch.float32 if torch.float32 in dtypes else torch.float64
        self.W = whitener(K, cutoff(self.n, self._dtype)).to(self._dtype)  # (..., r, n)

    @property
    def nbytes(self) -> int:
        """Bytes beyond the stored gradients; each protection has its own copy of D, laid out for speed."""
        return self.W.nbytes + sum(block.D.nbytes for block, *_ in self._terms if isinstance(block, Factored))

    def block(self, *names: str) -> Block:
        """The block of these parameters, which must hold every row of G."""
        which = [self.names.index(name) for name in names]
        (found,) = [block for block, rows, those in self._terms if those == which and rows == slice(0, self.n)]
        return found

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """From params, take Gᵀ K⁺ G u in place; `opposite` is −u. Collective if sharded."""
        if not self._terms and not self.sharded:
            return
        s = self.W.new_zeros(*self.W.shape[:-2], self.n)
        for block, rows, which in self._terms:
            s[..., rows] += block.overlap([opposite[i] for i in which]).to(s)
        (s,) = summed(s) if self.sharded else (s,)
        c = coefficients(self.W, s)
        sums = [torch.zeros_like(u) for u in opposite] if self.sharded else params
        for block, rows, which in self._terms:
            first = opposite[which[0]]
            block.add_combination([sums[i] for i in which], c[..., rows].to(first.device, working(first.dtype)))
        if self.sharded:
            for p, correction in zip(params, summed(*sums), strict=True):
                p.add_(correction)


def projector_of(store: Store, params: Mapping[str, Tensor]) -> Projector | None:
    """P for those of the given parameters that have stored gradients; None if none has."""
    store.check_shapes({name: p.shape for name, p in params.items()})
    params = {name: p for name, p in params.items() if name in store.shapes}
    return Projector(store.only(params), params, store.gram(params), store.sharded) if params else None
