"""G in the columns of some parameters, prepared for fast products G u and Gᵀ c."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ogd.memory.blocks.block import Block, working_dtype
from ogd.memory.blocks.pieces import Piece
from ogd.memory.ranks.collective import stream_items, sum_over_ranks

PART = 2**26  # bytes of a half-precision block that are converted at a time
HALF = (torch.bfloat16, torch.float16)


def common_working_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """Return the precision of overlaps and coefficients, which all the parameters share."""
    dtypes = {working_dtype(p.dtype) for p in tensors}
    return torch.float32 if torch.float32 in dtypes else torch.float64


class Columns:
    """The pieces of G in the columns of `params`. If sharded, they are this rank's, and products are collective."""

    def __init__(
        self,
        pieces: Iterable[Piece],
        params: Mapping[str, Tensor],
        n: int,
        sharded: Literal["rows", "columns"] | None = None,
    ):
        self.params, self.n, self.sharded = params, n, sharded
        self.pieces = list(pieces)
        self.dtype = common_working_dtype(params.values())
        self.device = next(iter(params.values())).device
        self.lead = self.pieces[0].block.lead if self.pieces else torch.Size()
        at = {name: i for i, name in enumerate(params)}
        self.terms = []
        for piece in self.pieces:
            block = _prepare(piece.block, params[piece.names[0]])
            self.terms.append((block, slice(piece.start, piece.stop), [at[name] for name in piece.names]))

    @property
    def nbytes(self) -> int:
        """The bytes of the copies that `optimize_layout` made."""
        return sum(block.layout_nbytes for block, *_ in self.terms if block.dtype not in HALF)

    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        """Return G u, (..., n)."""
        s = torch.zeros(*self.lead, self.n, dtype=self.dtype, device=self.device)
        for block, rows, which in self.terms:
            for part, place in _parts(block, rows, update[which[0]]):
                s[..., place] += part.overlap([update[i] for i in which]).to(s)
        return sum_over_ranks(s)[0] if self.sharded else s

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += Gᵀ c` in place."""
        rows_elsewhere = self.sharded == "rows"
        sums = [torch.zeros_like(p) for p in params] if rows_elsewhere else params
        for block, rows, which in self.terms:
            first = sums[which[0]]
            coefficients = c.to(first.device, working_dtype(first.dtype))
            for part, place in _parts(block, rows, first):
                part.add_combination([sums[i] for i in which], coefficients[..., place])
        if rows_elsewhere:
            for p, correction in zip(params, sum_over_ranks(*sums), strict=True):
                p.add_(correction)

    def gram(self, rows: slice) -> Tensor:
        """Return K of all n rows of G with some of them, (n, m), float64."""
        C = torch.zeros(self.n, rows.stop - rows.start, dtype=torch.float64, device=self.device)
        asked = [part for part in (p.between(rows.start, rows.stop) for p in self.pieces) if part.block.n]
        for part in stream_items(asked, self.device) if self.sharded == "rows" else asked:
            for mine in self.pieces:
                overlap = mine.gram(part)
                if overlap is not None:
                    C[mine.start : mine.stop, part.start - rows.start : part.stop - rows.start] += overlap.to(C.device)
        return sum_over_ranks(C)[0] if self.sharded else C

    def squares(self) -> Tensor:
        """Return |g_i|² for each row of G, (n,), float64."""
        total = torch.zeros(self.n, dtype=torch.float64, device=self.device)
        for piece in self.pieces:
            total[piece.start : piece.stop] += piece.block.squares().to(total.device)
        return sum_over_ranks(total)[0] if self.sharded else total


def _prepare(block: Block, param: Tensor) -> Block:
    """Return the block on its parameter's device, in working precision unless it is of half precision."""
    if block.dtype in HALF:
        return block.to(param.device, block.dtype)
    return block.to(param.device, working_dtype(param.dtype)).optimize_layout()


def _parts(block: Block, rows: slice, param: Tensor) -> Iterator[tuple[Block, slice]]:
    """Yield a block with its rows, or parts of a half-precision block converted to working precision."""
    if block.dtype not in HALF:
        yield block, rows
        return
    step = max(PART * block.n // max(block.nbytes, 1), 1)
    for a in range(0, block.n, step):
        b = min(a + step, block.n)
        yield block[a:b].to(param.device, working_dtype(param.dtype)), slice(rows.start + a, rows.start + b)
