"""Two workers side by side: an attack is of processes, so threads are enough."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

LANES = 2


def in_lanes(lane: Callable[[threading.Event], None]) -> None:
    """Run `lane` in every lane until all return; if one raises, or on Ctrl-C, the event tells the others to stop."""
    stop = threading.Event()
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(lane, stop) for _ in range(LANES)]
        try:
            for one in lanes:
                one.result()
        finally:
            stop.set()
