"""Choose how many steps k share one projection for every="auto", so that projections cost 2 % of training.

    k = t_P / (share · t)        t: seconds from one step to the next, t_P: seconds of a projection

Both are medians of recent measurements, because a step may wait for data or for an evaluation. With
`torch.distributed` all ranks use the first rank's k, because they must project at the same steps. A rank that has its
own memory and its own model (`alone`) exchanges nothing.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.ranks.collective import has_several_ranks

SHARE = 0.02  # of the time of a step, without the hooks, which take a few percent of a short step
FIRST = 8  # steps before the first projection: enough measurements
MEASURED = 31  # time only the first steps of a window, because timing costs time too
MOST = 2000  # steps: a longer window moves too far from its anchor, and its projection undoes too much


class Pace:
    """Measures steps and projections, and chooses `every`."""

    def __init__(self, alone: bool = False) -> None:
        self.every, self.alone = FIRST, alone
        self._steps: deque[float] = deque(maxlen=MEASURED)
        self._projections: deque[float] = deque(maxlen=5)
        self._began: float | None = None
        self._apart = 0.0  # seconds since then that do not belong to the step

    def start_step(self) -> None:
        """Record that a step begins."""
        now = time.perf_counter()
        if self._began is not None:
            self._steps.append(now - self._began - self._apart)
        self._began, self._apart = now, 0.0

    def record_projection(self, seconds: float, counts: bool = True) -> None:
        """Record the time of a projection, or of other work (counts=False) that is neither a step nor repeated."""
        self._apart += seconds
        if counts:
            self._projections.append(seconds)

    def choose(self, device: torch.device) -> None:
        """Set `every` from the measurements; from one window to the next it at most doubles."""
        if self._steps and self._projections:
            k = min(steps_between(self._steps, self._projections), 2 * self.every, MOST)
            self.every = k if self.alone else choice_of_first_rank(k, device)


def steps_between(steps: Sequence[float] | deque[float], projections: Sequence[float] | deque[float]) -> int:
    """Return k, at least 1, from the measured seconds of steps and projections.

    Examples:
        >>> steps_between([0.010, 0.010, 0.500], [0.002])
        10
    """
    t, t_P = statistics.median(steps), statistics.median(projections)
    return max(1, math.ceil(round(t_P / (SHARE * max(t, 1e-9)), 6)))


def choice_of_first_rank(k: int, device: torch.device) -> int:
    """Return the first rank's k."""
    if not has_several_ranks():
        return k
    shared = torch.tensor(k, device=device)
    torch.distributed.broadcast(shared, 0)
    return int(shared)


def clock(tensors: Sequence[Tensor]) -> float:
    """Return the time in seconds, after the tensors' devices have finished their work."""
    for device in {t.device for t in tensors if t.is_cuda}:
        torch.cuda.synchronize(device)
    return time.perf_counter()
