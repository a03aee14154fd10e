"""P for the parameters of one model or a stack: G's blocks and how K⁺ is applied, in the precision of the weights."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ogd.memory.blocks import Block, Factored
from ogd.memory.pseudo_inverse import coefficients, cutoff, inverse, scales, whitener
from ogd.memory.solve import Nystrom, conjugate_gradients
from ogd.memory.store import Piece, Store
from ogd.memory.work import announce

DIRECT = 5_000  # directions up to which K is formed
SLOW = 1_000  # directions from which an eigendecomposition takes seconds
SAMPLE = 2_000  # rows that the preconditioner knows
PART = 2**26  # bytes of a block of half-precision numbers that are turned into others at a time
HALF = (torch.bfloat16, torch.float16)
EXHAUSTED = 0.01


def working(dtype: torch.dtype) -> torch.dtype:
    """The precision in which updates of a parameter are projected: half types in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Projector:
    """P for some parameters, given the pieces of G in their columns, and K⁺ in one of three forms.

    W (..., r, n) with K⁺ = Wᵀ W; or L (n, n) and the scale of the rows, by Cholesky; or neither: then K is not formed.
    """

    def __init__(
        self,
        pieces: Iterable[Piece],
        params: Mapping[str, Tensor],
        n: int,
        W: Tensor | None = None,
        factor: tuple[Tensor, Tensor] | None = None,
    ):
        self.names, self.n, self.params = tuple(params), n, params
        at = {name: i for i, name in enumerate(params)}
        self._pieces = list(pieces)
        self._terms = []
        for piece in self._pieces:
            first = params[piece.names[0]]
            block = _ready(piece.block, first)
            self._terms.append((block, slice(piece.start, piece.stop), [at[name] for name in piece.names]))
        self.dtype = working_of(params.values())
        self._W = None if W is None else W.to(self.dtype)
        self._L: Tensor | None = None if factor is None else factor[0]
        self._scale: Tensor | None = None if factor is None else factor[1]
        self._precondition: Nystrom | None = None
        if W is None and factor is None:
            self._scale, self._precondition = self._sampled()
        self.iterations = 0
        self.last: tuple[Tensor, Tensor] | None = None  # |u − P u|² and |u|² of the last update of a single model
        self._warned = False

    @property
    def W(self) -> Tensor:
        assert self._W is not None, "this projector does without K"
        return self._W

    @property
    def nbytes(self) -> int:
        """Bytes beyond the stored gradients; each protection has its own copy of D, laid out for speed."""
        copies = sum(block.D.nbytes for block, *_ in self._terms if isinstance(block, Factored) and not _half(block))
        held = (self._W, None if self._precondition is None else self._precondition.E)  # L is the store's
        return copies + sum(t.nbytes for t in held if t is not None)

    def block(self, *names: str) -> Block:
        """The block of these parameters, which must hold every row of G."""
        which = [self.names.index(name) for name in names]
        (found,) = [block for block, rows, those in self._terms if those == which and rows == slice(0, self.n)]
        return found

    def remove(self, params: Sequence[Tensor], opposite: Sequence[Tensor]) -> None:
        """From params, take Gᵀ K⁺ G u in place; `opposite` is −u."""
        if not self._terms:
            return
        s = self.overlap(opposite)
        c = coefficients(self._W, s) if self._W is not None else self._solved(s)
        if s.ndim == 1:
            norms = [norm.to(s) for norm in torch._foreach_norm(list(opposite))]
            self.last = (c @ s, torch.stack(norms).square().sum())
        self.add_combination(params, c)

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        """G u, (..., n)."""
        block = self._terms[0][0]
        s = torch.zeros(*block.lead, self.n, dtype=self.dtype, device=block.device)
        for block, rows, which in self._terms:
            for part, place in _parts(block, rows, update[which[0]]):
                s[..., place] += part.overlap([update[i] for i in which]).to(s)
        return s

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += Gᵀ c` in place."""
        for block, rows, which in self._terms:
            first = params[which[0]]
            for part, place in _parts(block, rows, first):
                part.add_combination([params[i] for i in which], c[..., place].to(first.device, working(first.dtype)))

    def _solved(self, s: Tensor) -> Tensor:
        """K⁺ s by Cholesky's factors or by conjugate gradients."""
        scale, precondition = self._scale, self._precondition
        assert scale is not None
        if self._L is not None:
            return (scale * inverse(self._L, scale * s.to(scale))).to(s)
        assert precondition is not None
        zeros = [torch.zeros_like(p, dtype=working(p.dtype)) for p in self.params.values()]

        def product(v: Tensor) -> Tensor:
            torch._foreach_zero_(zeros)
            self.add_combination(zeros, (scale * v).to(self.dtype))
            return scale * self.overlap(zeros)

        c, self.iterations = conjugate_gradients(product, scale * s, precondition)
        return (scale * c).to(self.dtype)

    def _sampled(self) -> tuple[Tensor, Nystrom]:
        """1 / |g_i| for each row of G, and the preconditioner."""
        step = max(self.n // 16, 1)
        sample = [slice(a, min(a + max(SAMPLE // 16, 1), self.n)) for a in range(0, self.n, step)]
        width = sum(piece.block.nbytes for piece in self._pieces) / self.n / 4
        rows = sum(part.stop - part.start for part in sample)
        announce(f"preparing {self.n:,} directions", self.n * rows * width / 1e9, self.n * rows * 12)
        C = torch.cat([cross_gram(self._pieces, self.n, part) for part in sample], 1)  # (n, m)
        norms = torch.sqrt(squares(self._pieces, self.n))
        scale = torch.where(norms > 1e-12 * norms.amax(), 1 / norms, 0)
        index = torch.cat([torch.arange(part.start, part.stop) for part in sample]).to(C.device)
        C = scale.unsqueeze(1) * C * scale[index]
        precondition = Nystrom(C, C[index])
        precondition.E = precondition.E.to(self.dtype)
        return scale.to(self.dtype), precondition

    def check_room(self) -> None:
        """Warn once when hardly anything is left of an update; where the answer is on another device, do not wait."""
        if self._warned or self.last is None or self.last[0].device.type != "cpu" or kept(self.last) > EXHAUSTED:
            return
        self._warned = True
        warnings.warn(
            f"{kept(self.last):.2%} of an update is left after its projection: {self.n:,} directions leave hardly "
            "any room to learn; remember fewer examples per task (per_task=) or use a larger model",
            stacklevel=4,
        )


def kept(last: tuple[Tensor, Tensor]) -> float:
    """The share |P u| / |u| of an update."""
    removed, whole = (float(t) for t in last)
    return max(1 - removed / whole, 0.0) ** 0.5 if whole > 0 else 1.0


def working_of(tensors: Iterable[Tensor]) -> torch.dtype:
    """The precision of what several parameters have in common."""
    dtypes = {working(p.dtype) for p in tensors}
    return torch.float32 if torch.float32 in dtypes else torch.float64


def cross_gram(pieces: Collection[Piece], n: int, rows: slice) -> Tensor:
    """K of all n rows of G with some of them, (n, m)."""
    C = torch.zeros(n, rows.stop - rows.start, dtype=torch.float64, device=next(iter(pieces)).block.device)
    for piece in pieces:
        part = piece.since(rows.start)
        if part.start >= rows.stop or part.block.n == 0:
            continue
        part = part.until(rows.stop)
        for other in pieces:
            overlap = other.gram(part)
            if overlap is not None:
                C[other.start : other.stop, part.start - rows.start : part.stop - rows.start] += overlap.to(C.device)
    return C


def squares(pieces: Collection[Piece], n: int) -> Tensor:
    """|g_i|² for each row of G."""
    total = torch.zeros(n, dtype=torch.float64, device=next(iter(pieces)).block.device)
    for piece in pieces:
        total[piece.start : piece.stop] += piece.block.squares().to(total.device)
    return total


def projector_of(store: Store, params: Mapping[str, Tensor]) -> Projector | None:
    """P for those of the given parameters that have stored gradients; None if none has."""
    store.check_shapes({name: p.shape for name, p in params.items()})
    params = {name: p for name, p in params.items() if name in store.shapes}
    if not params:
        return None
    n = len(store)
    if n > DIRECT and not store.lead:
        return Projector(store.only(params), params, n)
    L, K = store.well_conditioned(params), store.gram(params)
    if L is not None:
        return Projector(store.only(params), params, n, factor=(L, scales(K)))
    if n > SLOW and not store.lead:
        announce(f"K⁺ of {n:,} directions, some of which depend on others", 10 * n**3 / 1e9, 24 * n**2)
    return Projector(store.only(params), params, n, whitener(K, cutoff(n, working_of(params.values()))))


def _half(block: Block) -> bool:
    return any(t.dtype in HALF for t in block.tensors().values())


def _ready(block: Block, param: Tensor) -> Block:
    """The block where its parameter is, in working precision; one of half precision stays as small as it is."""
    if _half(block):
        return block.to(param.device, next(t.dtype for t in block.tensors().values() if t.dtype in HALF))
    return block.to(param.device, working(param.dtype)).laid_out()


def _parts(block: Block, rows: slice, param: Tensor) -> Iterator[tuple[Block, slice]]:
    """A block with its rows; one of half precision in parts that are turned into working precision."""
    if not _half(block):
        yield block, rows
        return
    step = max(PART * block.n // max(block.nbytes, 1), 1)
    for a in range(0, block.n, step):
        b = min(a + step, block.n)
        yield block[a:b].to(param.device, working(param.dtype)), slice(rows.start + a, rows.start + b)
