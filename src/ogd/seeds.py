"""Seed every random draw by a hash of a seed, the purpose of the draw and its counters.

With a sum instead of a hash, batch 1 of seed 0 would be batch 0 of seed 1.
"""

import hashlib
from collections.abc import Sequence

import torch


def generator(*parts: int | str) -> torch.Generator:
    """Return the generator of a seed, a purpose and counters; in the laboratory, of a seed, a run and a purpose.

    Its state depends on nothing else. So run 3 draws the same numbers whichever runs are trained with it, and a new
    draw for one purpose does not change the draws for others.

    Examples:
        >>> torch.rand(2, generator=generator(0, 3, "order")).equal(torch.rand(2, generator=generator(0, 3, "order")))
        True
    """
    return torch.Generator().manual_seed(number(*parts))


def number(*parts: int | str) -> int:
    """Return the number that `generator` is seeded with."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")  # mt19937 takes 32 bits: s and s + 2**32 would draw the same


def draw(seed: int, runs: Sequence[int], purpose: str, total: int, n: int) -> torch.Tensor:
    """Return n of `total` indices in random order for each run, (R, min(n, total)), without repetition."""
    return torch.stack([torch.randperm(total, generator=generator(seed, r, purpose))[:n] for r in runs])
