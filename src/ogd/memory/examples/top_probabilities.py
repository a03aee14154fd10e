"""Keep many class scores as a distribution: the largest probabilities, and the sum of all others.

The scores of a vocabulary take megabytes per text. A text of 128 tokens over 50,257 words takes 25.7 MB in float32, and
16.6 KB with its 32 largest log-probabilities per token in float16, their places in int16 and the others' sum.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

MANY = 4096  # outputs; fewer are kept whole
K = 32  # a distribution of a few likely words, in a thousandth of the bytes of all scores
CHUNK = 2**21  # scores that are computed with at a time, in float32 or float64; a cache holds a few of them
HALF = torch.finfo(torch.float16)


@dataclass(frozen=True, eq=False)
class TopProbabilities:
    """The K largest log-probabilities of C outputs, in descending order, their places, and that of all others."""

    logs: Tensor  # (n, …, K + 1), float16; the last one is that of all other outputs together
    shifted_places: Tensor  # (n, …, K), less C // 2, so that int16 holds the places of up to 65,536 outputs
    C: int

    def __len__(self) -> int:
        return len(self.logs)

    def __getitem__(self, rows: Tensor | slice | int) -> "TopProbabilities":
        return self._map(lambda t: t[rows])

    @property
    def shape(self) -> torch.Size:
        """The shape of all outputs, (n, …, C)."""
        return torch.Size((*self.logs.shape[:-1], self.C))

    @property
    def ndim(self) -> int:
        return self.logs.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.logs.dtype

    @property
    def device(self) -> torch.device:
        return self.logs.device

    @property
    def nbytes(self) -> int:
        return self.logs.nbytes + self.shifted_places.nbytes

    @property
    def places(self) -> Tensor:
        """The places of the K largest outputs, (n, …, K)."""
        return self.shifted_places.long() + self.C // 2

    def log_probabilities(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the log-probabilities (n, …, K + 1); rounded ones do not add up to 1, these do."""
        return self.logs.to(dtype).log_softmax(-1)

    def index_select(self, axis: int, rows: Tensor) -> "TopProbabilities":
        return self._map(lambda t: t.index_select(axis, rows))

    def split(self, size: int) -> "list[TopProbabilities]":
        parts = zip(self.logs.split(size), self.shifted_places.split(size), strict=True)
        return [TopProbabilities(*part, self.C) for part in parts]

    def to(self, device: torch.device) -> "TopProbabilities":
        return self._map(lambda t: t.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> "TopProbabilities":
        return replace(self, logs=function(self.logs), shifted_places=function(self.shifted_places))


Outputs = Tensor | TopProbabilities  # of several examples, as they are kept


def concatenate_outputs(parts: Sequence[Outputs]) -> Outputs:
    """Return the outputs of several groups of examples, all kept in one way."""
    tops = [z for z in parts if isinstance(z, TopProbabilities)]
    if not tops:
        return torch.cat([z for z in parts if isinstance(z, Tensor)])
    return replace(
        tops[0], logs=torch.cat([z.logs for z in tops]), shifted_places=torch.cat([z.shifted_places for z in tops])
    )


def top_probabilities(z: Tensor) -> TopProbabilities:
    """Return the largest probabilities of the softmax of scores z (n, …, C), for more than K scores.

    Examples:
        >>> top = top_probabilities(torch.arange(100.0).view(1, 100))
        >>> top.places[0, :3], top.log_probabilities()[0, [0, 1, -1]].round(decimals=2)
        (tensor([99, 98, 97]), tensor([ -0.4600,  -1.4600, -32.0000]))
    """
    C = z.shape[-1]
    rows = z.detach().reshape(-1, C)
    logs = torch.empty(len(rows), K + 1, dtype=torch.float16, device=z.device)
    places = torch.empty(len(rows), K, dtype=torch.int16 if C <= 2**16 else torch.int32, device=z.device)
    for part in row_chunks(torch.arange(len(rows), device=z.device), C):
        f = widen(rows[part])
        total = f.logsumexp(1, keepdim=True)
        largest, at = f.topk(K, 1)
        others = f.scatter_(1, at, -torch.inf).logsumexp(1, keepdim=True)
        logs[part] = (torch.cat([largest, others], 1) - total).clamp(HALF.min, 0).half()
        places[part] = (at - C // 2).to(places.dtype)
    shape = partial(torch.reshape, shape=(*z.shape[:-1], -1))
    return TopProbabilities(shape(logs), shape(places), C)


def row_chunks(rows: Tensor, C: int) -> Iterator[Tensor]:
    """Yield some rows at a time: no more than CHUNK numbers, if a row has C."""
    yield from rows.split(max(CHUNK // C, 1))


def slices(n: int, C: int) -> Iterator[slice]:
    """Yield all of n rows in such chunks."""
    size = max(CHUNK // C, 1)
    yield from (slice(i, i + size) for i in range(0, n, size))


def widen(z: Tensor) -> Tensor:
    """Return a copy of z in float32, or in float64 if it is in float64."""
    return z.to(torch.float64 if z.dtype is torch.float64 else torch.float32, copy=True)
