"""Draw the examples of a task from the data of several ranks of `torch.distributed`, none of them twice.

Each rank draws candidates from its own data, and `shares` chooses among the candidates of all ranks. All ranks must
call the functions that are marked as collective.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from ogd import seeds
from ogd.memory.data.batches import Chunk, length, take
from ogd.memory.data.budget import equal_shares
from ogd.memory.data.sampling import Sample
from ogd.memory.ranks.agreement import bytes_of, digest
from ogd.memory.ranks.collective import gather_results

Key = tuple[bytes, int]  # an example's fingerprint, and how many equal examples this rank has drawn before it


def draw_shares(examples: Sample) -> tuple[list[Chunk], list[list[int]]]:
    """Return the candidates of this rank, and which of its candidates each rank gives. Collective."""
    drawn: list[Chunk] = []

    def candidates() -> tuple[list[Key], list[int], int]:
        seed = examples.generator.initial_seed()
        return keys(_append_to(drawn, examples)), _labels(drawn) if examples.balanced else [], seed

    offers, labels, (seed, *_) = zip(*gather_results(candidates, "draw its examples"), strict=True)
    if not any(offers):
        raise ValueError("data is empty on every rank: there is no example to remember")
    if examples.balanced:
        return drawn, balanced_shares(offers, labels, examples.count, seed)
    return drawn, shares(offers, examples.count, seed)


def all_examples(examples: Sample) -> list[Chunk]:
    """Return the examples of all ranks, in the order of the ranks. Collective."""
    drawn, given = draw_shares(examples)
    mine = [
        pytree.tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, chunk)
        for chunk in take_examples(drawn, given[dist.get_rank()])
    ]
    return [chunk for theirs in gather_results(lambda: mine, "give its examples") for chunk in theirs]


def keys(chunks: Iterable[Chunk]) -> list[Key]:
    """Return a key for each example, the same on every rank; equal examples of one rank are numbered.

    Examples:
        >>> [n for _, n in keys([(torch.tensor([[1.0], [2.0], [1.0]]), None)])]
        [0, 0, 1]
    """
    seen: Counter[bytes] = Counter()
    result = []
    for chunk in chunks:
        tensors = [t for t in pytree.tree_leaves(chunk) if isinstance(t, Tensor)]
        for i in range(length(chunk)):
            fingerprint = digest(b"".join(bytes_of(t[i]) for t in tensors))
            result.append((fingerprint, seen[fingerprint]))
            seen[fingerprint] += 1
    return result


def shares(offers: Sequence[Sequence[Key]], count: int | None, seed: int) -> list[list[int]]:
    """Return which candidates each rank gives: `count` in all, none twice, and equal numbers if possible.

    All ranks use one random order, in which rank r of N first offers its candidates r, r + N, r + 2N, …. So ranks with
    the same candidates divide them, and a rank with candidates of its own gives a uniform draw of them.

    Examples:
        >>> same = [(b"a", 0), (b"b", 0), (b"c", 0), (b"d", 0)]
        >>> [len(share) for share in shares([same, same], 3, 0)], sorted(sum(shares([same, same], None, 0), []))
        ([2, 1], [0, 1, 2, 3])
        >>> shares([[(b"a", 0), (b"b", 0)], [(b"c", 0)]], None, 0)
        [[0, 1], [0]]
    """
    N = len(offers)
    queues = [iter(_order(seed, len(offer), r, N)) for r, offer in enumerate(offers)]
    given: list[list[int]] = [[] for _ in offers]
    taken: set[Key] = set()
    most = sum(map(len, offers)) if count is None else count
    while len(taken) < most:
        before = len(taken)
        for offer, queue, share in zip(offers, queues, given, strict=True):
            i = next((i for i in queue if offer[i] not in taken), None)
            if i is not None and len(taken) < most:
                taken.add(offer[i])
                share.append(i)
        if len(taken) == before:  # no candidate is left
            break
    return [sorted(share) for share in given]


def balanced_shares(
    offers: Sequence[Sequence[Key]], labels: Sequence[Sequence[int]], count: int | None, seed: int
) -> list[list[int]]:
    """Return which candidates each rank gives, with equal numbers of each label over all ranks if possible.

    Examples:
        >>> offers = [[(b"a", 0), (b"b", 0), (b"c", 0)], [(b"d", 0)]]
        >>> balanced_shares(offers, [[0, 0, 1], [1]], 2, 0)
        [[1], [0]]
    """
    known = sorted({label for those in labels for label in those})
    places = [[[i for i, c in enumerate(those) if c == label] for those in labels] for label in known]
    groups = [[[offer[i] for i in at] for offer, at in zip(offers, by_rank, strict=True)] for by_rank in places]
    sizes = [len({key for offer in group for key in offer}) for group in groups]
    counts = equal_shares(sizes, sum(sizes) if count is None else count)
    given: list[list[int]] = [[] for _ in offers]
    for group, by_rank, most in zip(groups, places, counts, strict=True):
        first = sum(map(len, given)) % len(offers)  # else rank 0 would give the first example of every label
        dealt = shares([*group[first:], *group[:first]], most, seed)
        for turn, chosen in enumerate(dealt):
            r = (first + turn) % len(offers)
            given[r] += [by_rank[r][i] for i in chosen]
    return [sorted(share) for share in given]


def take_examples(chunks: Iterable[Chunk], rows: Sequence[int]) -> Iterator[Chunk]:
    """Yield some examples of a list of chunks, by their ascending numbers over all chunks."""
    start = 0
    for chunk in chunks:
        stop = start + length(chunk)
        inside = [i - start for i in rows if start <= i < stop]
        if inside:
            yield take(chunk, inside)
        start = stop


def _order(seed: int, n: int, r: int, N: int) -> list[int]:
    order: list[int] = torch.randperm(n, generator=seeds.generator(seed, "share", n)).tolist()
    return order[r::N] + [i for at, i in enumerate(order) if at % N != r]


def _append_to(chunks: list[Chunk], examples: Iterable[Chunk]) -> Iterator[Chunk]:
    for chunk in examples:
        chunks.append(chunk)
        yield chunk


def _labels(chunks: Iterable[Chunk]) -> list[int]:
    return [int(label) for _, y in chunks for label in y]
