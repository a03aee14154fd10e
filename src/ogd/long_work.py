"""Warn before work that will take more than ten seconds or a gigabyte."""

import time
import warnings
from functools import cache

import torch

SECONDS, BYTES = 10, 10**9


class LongWork(UserWarning):
    """The category of warnings before work that takes long or much memory. Nothing is wrong."""


def warn_of_work(what: str, gigaflops: float, nbytes: float) -> None:
    """Warn if the estimated gigaflops (float64) or bytes exceed a threshold."""
    seconds = gigaflops / _speed() if gigaflops > SECONDS else 0
    warn_if_long(what, seconds, nbytes)


def warn_if_long(what: str, seconds: float, nbytes: float) -> None:
    """Warn if the estimated seconds or bytes exceed a threshold."""
    if seconds > SECONDS or nbytes > BYTES:
        took = f"about {seconds:,.0f} s" if seconds >= 1 else "a moment"
        warnings.warn(f"{what}: will take {took} and {nbytes / 1e9:.1f} GB", LongWork, stacklevel=3)


@cache
def _speed() -> float:
    """Return the gigaflops per second (float64) of this machine."""
    a = torch.randn(400, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 400**3 / 1e9 / (time.perf_counter() - began)
