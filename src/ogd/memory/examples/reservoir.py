"""Keep a uniform draw of all examples of a stream, whose length is unknown.

Example k (from 0 on) enters with probability min(1, size / (k + 1)), and replaces a kept example, each with the same
probability (Vitter's algorithm R).
"""

import torch
from torch import Generator


def reservoir(kept: int, seen: int, new: int, size: int, generator: Generator) -> tuple[list[int], list[int]]:
    """Return which kept examples stay and which of `new` examples enter, by their ascending numbers.

    Examples:
        >>> reservoir(kept=0, seen=0, new=3, size=2, generator=Generator().manual_seed(0))[0]
        []
        >>> stay, enter = reservoir(kept=2, seen=2, new=50, size=2, generator=Generator().manual_seed(0))
        >>> len(stay) + len(enter)
        2
    """
    places = list(range(kept))  # numbers of kept examples, and kept + i for new example i
    drawn = torch.rand(new, generator=generator, dtype=torch.float64).tolist()
    for i, share in enumerate(drawn):
        if len(places) < size:
            places.append(kept + i)
            continue
        place = int(share * (seen + i + 1))
        if place < size:
            places[place] = kept + i
    places.sort()
    return [place for place in places if place < kept], [place - kept for place in places if place >= kept]
