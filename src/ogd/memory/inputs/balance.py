"""As equal numbers of each label as can be: a label of few examples gives them all, the others share what is left."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

from ogd.memory.shares import equal_shares

T = TypeVar("T")


def balanced_rows(y: Tensor, count: int, generator: Generator) -> Tensor:
    """`count` rows of the labels y (n,), drawn uniformly within each label, in their order.

    Examples:
        >>> y = torch.tensor([0] * 97 + [1] * 3)
        >>> y[balanced_rows(y, 10, torch.Generator())].bincount()
        tensor([7, 3])
    """
    keys = torch.rand(len(y), generator=generator, dtype=torch.float64).tolist()
    kept = trimmed(list(zip(keys, y.tolist(), range(len(y)), strict=True)), count)
    return torch.tensor(sorted(row for _, _, row in kept), dtype=torch.long)


def trimmed(drawn: Sequence[tuple[float, int, T]], count: int) -> list[tuple[float, int, T]]:
    """Of (key, label, example) those with the smallest keys, `count` in all, as equal in number for each label.

    Taken batch by batch the result is that of all at once: with more examples a label's share only falls, unless an
    example with a smaller key than all brings it forward to what is left over.

    Examples:
        >>> trimmed([(0.1, 7, "a"), (0.2, 7, "b"), (0.3, 8, "c")], 2)
        [(0.1, 7, 'a'), (0.3, 8, 'c')]
    """
    drawn = sorted(drawn, key=lambda one: one[0])
    sizes = Counter(label for _, label, _ in drawn)  # in the order of each label's smallest key
    share = dict(zip(sizes, equal_shares(list(sizes.values()), count), strict=True))
    kept = []
    for one in drawn:
        if share[one[1]]:
            share[one[1]] -= 1
            kept.append(one)
    return kept
