"""every="auto": how many steps k share one projection, so that protection costs a small share of training.

    k = t_P / (share · t)        t: seconds of a step with all that surrounds it, t_P: seconds of a projection

Both are medians of what was measured lately, because a step may wait for data or for an evaluation. With
`torch.distributed` initialised all ranks take the first one's k, or they would project at different steps; a rank
that has a memory and a model of its own is alone, and waits for nobody.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.memory.ranks.collective import has_several_ranks

SHARE = 0.02  # of the time of a step; the hooks themselves take a few percent of a short one
FIRST = 8  # steps before the first projection, enough to measure them
MEASURED = 31  # steps, the first ones of a window: to look at the clock takes time, too
MOST = 2000  # further from its anchor a window would unlearn more than the next one can learn again


class Pace:
    """Measures steps and projections, and says how many of the first go with one of the second."""

    def __init__(self, alone: bool = False) -> None:
        self.every, self.alone = FIRST, alone
        self._steps: deque[float] = deque(maxlen=MEASURED)
        self._projections: deque[float] = deque(maxlen=5)
        self._began: float | None = None
        self._apart = 0.0  # seconds since then that were not the step's

    def start_step(self) -> None:
        """A step begins."""
        now = time.perf_counter()
        if self._began is not None:
            self._steps.append(now - self._began - self._apart)
        self._began, self._apart = now, 0.0

    def record_projection(self, seconds: float, counts: bool = True) -> None:
        """Note a projection, or other work (counts=False) that is not of the step and not repeated."""
        self._apart += seconds
        if counts:
            self._projections.append(seconds)

    def choose(self, device: torch.device) -> None:
        """Take k from what was measured; from one window to the next it doubles at most."""
        if self._steps and self._projections:
            k = min(steps_between(self._steps, self._projections), 2 * self.every, MOST)
            self.every = k if self.alone else choice_of_first_rank(k, device)


def steps_between(steps: Sequence[float] | deque[float], projections: Sequence[float] | deque[float]) -> int:
    """k for measured seconds of steps and of projections, at least 1.

    Examples:
        >>> steps_between([0.010, 0.010, 0.500], [0.002])
        10
    """
    t, t_P = statistics.median(steps), statistics.median(projections)
    return max(1, math.ceil(round(t_P / (SHARE * max(t, 1e-9)), 6)))


def choice_of_first_rank(k: int, device: torch.device) -> int:
    """The first rank's k."""
    if not has_several_ranks():
        return k
    shared = torch.tensor(k, device=device)
    torch.distributed.broadcast(shared, 0)
    return int(shared)


def clock(tensors: Sequence[Tensor]) -> float:
    """The time, after what was asked of the tensors' devices is done."""
    for device in {t.device for t in tensors if t.is_cuda}:
        torch.cuda.synchronize(device)
    return time.perf_counter()
