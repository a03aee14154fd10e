"""Draw examples of which the model is uncertain: near its boundaries they show more of what it has learned.

    w = H + FLOOR,    H = −Σ_c p_c log p_c,    p = softmax(z)

First `AMONG · count` candidates are drawn uniformly, then `count` of these without replacement, with probabilities in
proportion to w: the largest log w + g, where g has Gumbel's distribution (Efraimidis and Spirakis, 2006). The most
uncertain examples alone would be outliers; docs/choosing.md compares both.
"""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from ogd.memory.data.batches import Chunk, describe, length, take, to_device
from ogd.memory.data.calling import ScoredModel
from ogd.memory.data.sampling import Sample
from ogd.memory.model.eval_mode import isolated_eval_mode
from ogd.memory.model.parameters import device_of

AMONG = 20
FLOOR = 0.01  # nats: the weight of an example of which the model is certain


class UncertainSample(Sample):
    """`count` examples of `data`, drawn in proportion to the uncertainty of the model's outputs."""

    def __init__(self, model: ScoredModel, data: object, count: int, generator: Generator, chunk_size: int):
        super().__init__(data, count, generator, chunk_size)
        self.model, self.drawn = model, count
        self.candidates = Sample(data, count * AMONG, generator, chunk_size)

    def _batches(self, _: object) -> Iterator[Chunk]:
        chunks = list(self.candidates)
        if not chunks:
            return
        with isolated_eval_mode(self.model.model), torch.no_grad():
            found = [self._entropies(chunk) for chunk in chunks]
        rows, start = uncertain_order(torch.cat(found), self.drawn, self.generator).sort().values, 0
        for chunk, H in zip(chunks, found, strict=True):
            own = rows[(rows >= start) & (rows < start + len(H))] - start
            start += len(H)
            if len(own):
                yield take(chunk, own)

    def _entropies(self, chunk: Chunk) -> Tensor:
        z = self.model.scores(to_device(chunk[0], device_of(self.model.model)))
        if z.ndim < 2 or z.shape[-1] < 2 or len(z) != length(chunk):
            raise ValueError(
                f'choose="uncertain" needs the scores of two or more classes, and the model gives {describe(z)}: '
                'use choose="uniform", or give logits='
            )
        return entropies(z if self.model.classes is None else z[..., self.model.classes]).cpu()


def entropies(z: Tensor) -> Tensor:
    """Return the entropy of each example's softmax, given its scores (B, …, C); the mean if it has several positions.

    Examples:
        >>> entropies(torch.tensor([[0.0, 0.0], [100.0, 0.0]])).round(decimals=4)
        tensor([0.6931, 0.0000])
    """
    H: Tensor = torch.special.entr(z.float().softmax(-1)).sum(-1)
    return H.flatten(1).mean(1) if H.ndim > 1 else H


def uncertain_order(H: Tensor, count: int, generator: Generator) -> Tensor:
    """Return which examples with entropies H (n,) are drawn; the first k of the result are a draw of k.

    Examples:
        >>> H = torch.tensor([0.0, 0.7, 0.7, 0.0])
        >>> uncertain_order(H, 2, Generator().manual_seed(0)).sort().values
        tensor([1, 2])
    """
    u = torch.rand(len(H), generator=generator, dtype=torch.float64).clamp(min=1e-300)
    keys = (H.double() + FLOOR).log() - (-u.log()).log()
    return keys.topk(min(count, len(H))).indices
