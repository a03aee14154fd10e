"""Which examples of a stream are kept: a uniform draw of all that have been seen, though their number is not known.

Example k (from 0 on) enters with probability min(1, size / (k + 1)), in the place of one of those kept, each as likely
(Vitter's algorithm R).
"""

import torch
from torch import Generator


def reservoir(kept: int, seen: int, new: int, size: int, generator: Generator) -> tuple[list[int], list[int]]:
    """Which of those kept stay and which of `new` examples enter, by their ascending numbers.

    Examples:
        >>> reservoir(kept=0, seen=0, new=3, size=2, generator=Generator().manual_seed(0))[0]
        []
        >>> stay, enter = reservoir(kept=2, seen=2, new=50, size=2, generator=Generator().manual_seed(0))
        >>> len(stay) + len(enter)
        2
    """
    places = list(range(kept))  # of those kept, and kept + i for the i-th new one
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
