"""How many threads compute."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that a result does not depend on how many cores its machine has.

    At batch 10 a second thread costs more than it brings; more cores are for more processes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
