"""Every random draw of run r comes from generators derived from (seed, r, purpose) alone."""

import hashlib
from collections.abc import Sequence

import torch


def generator(seed: int, run: int, purpose: str) -> torch.Generator:
    """Return the generator of one run for one purpose.

    Its state depends on nothing else, so run 3 draws the same numbers whoever trains beside it, and a draw
    added for one purpose leaves all others as they were.

    Examples:
        >>> torch.rand(2, generator=generator(0, 3, "order")).equal(torch.rand(2, generator=generator(0, 3, "order")))
        True
    """
    return torch.Generator().manual_seed(number(seed, run, purpose))


def number(seed: int, run: int, purpose: str) -> int:
    """Return the number that a generator of one run for one purpose is seeded with."""
    digest = hashlib.sha256(f"{seed}/{run}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "big")  # mt19937 takes 32 bits


def draw(seed: int, runs: Sequence[int], purpose: str, total: int, n: int) -> torch.Tensor:
    """Return n of `total` things in random order for each run, (R, min(n, total)), without repetition."""
    return torch.stack([torch.randperm(total, generator=generator(seed, r, purpose))[:n] for r in runs])
