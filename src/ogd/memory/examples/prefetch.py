"""Draw the batches for rehearsal, and unpack 16 of them at a time to share the overhead.

The seed of batch j is (seed, "rehearsal", j), so it does not depend on when the batch is drawn.
"""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from ogd import seeds
from ogd.memory.examples.kept_examples import Batch, Examples

BATCHES = 16  # unpacked at a time
MAX_BYTES = 2**20  # of all these batches, which must stay in the cache until they are used


def draw(seed: int, number: int, n: int, size: int, generator: Generator | None = None) -> Tensor:
    """Draw which of n examples are in a batch, without replacement; `generator` is reseeded in place."""
    generator = Generator() if generator is None else generator
    return torch.randperm(n, generator=generator.manual_seed(seeds.number(seed, "rehearsal", number)))[:size]


class Prefetcher:
    """The next batches for rehearsal, of examples that all have one form."""

    def __init__(self) -> None:
        self._of: Examples | None = None
        self._how = (0, 0)  # seed and size
        self._first = 0
        self._batches: Sequence[Batch] = ()

    def batch(self, examples: Examples, seed: int, number: int, size: int) -> Batch:
        """Return batch `number` of examples that all have one form, as `examples.batches` would."""
        at = number - self._first
        if self._of is not examples or self._how != (seed, size) or not 0 <= at < len(self._batches):
            batches = _draw_ahead(examples, seed, number, min(size, len(examples)))
            self._of, self._how, self._first, self._batches = examples, (seed, size), number, batches
            at = 0
        return self._batches[at]


def _draw_ahead(examples: Examples, seed: int, number: int, size: int) -> list[Batch]:
    group = examples.groups[0]  # all groups have its form
    each = size * (group.z[0].nbytes + sum(leaf.data[0].numel() * leaf.dtype.itemsize for leaf in group.packed))
    numbers = range(number, number + max(min(BATCHES, MAX_BYTES // max(each, 1)), 1))
    generator = Generator()
    rows = torch.cat([draw(seed, j, len(examples), size, generator) for j in numbers])
    (together,) = examples.batches(rows)
    return together.split(size)
