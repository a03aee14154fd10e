"""One memory for all ranks of `torch.distributed`: who differentiates which examples, and who keeps which rows of G.

Each rank draws candidates from what it was given, and `shares` deals them out: every example is differentiated once.
The rows stand in the order of the ranks, task by task, so G is the same wherever it is kept:

    whole      each rank keeps all of G
    sharded    rank r keeps its rows G_r:    G u = [G_r u]_r,    Gᵀ c = Σ_r G_rᵀ c_r,    and each rank all of K
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

from ogd import seeds
from ogd.memory.blocks.pieces import Piece, appended
from ogd.memory.gradients.gather import check_dependent, completed
from ogd.memory.gradients.remembering import plain_pieces, rows_of_each
from ogd.memory.inputs.examples import Chunk, Drawn, length, take
from ogd.memory.inputs.outputs import Chosen
from ogd.memory.projection.store import Shapes, Store
from ogd.memory.ranks.alike import bytes_of, check_alike, hashed
from ogd.memory.ranks.collective import owned, streamed, together
from ogd.memory.shares import equal_shares

Key = tuple[bytes, int]  # an example's fingerprint, and how many like it this rank has drawn before


def remembered(
    store: Store,
    chosen: Chosen,
    params: Mapping[str, Tensor],
    examples: Drawn,
    chunk_size: int | None,
    dtype: torch.dtype | None,
    sharded: bool,
) -> Store:
    """The store and another task, to which each rank gives its share. Collective."""
    drawn, given = dealt(examples)
    mine = given[dist.get_rank()]
    shapes = {name: p.shape for name, p in params.items()}
    pieces: list[Piece] = []

    def share() -> tuple[int, Shapes, bool]:
        if not mine:  # fewer examples than ranks
            return 0, shapes, False
        found, n = plain_pieces(chosen, params, picked(drawn, mine), len(store), chunk_size, dtype, len(mine))
        pieces.extend(found)
        return n, shapes, bool(found)

    told = together(share, "remember its share")
    if any(theirs != shapes for _, theirs, _ in told):
        raise ValueError("the ranks hold different models, or protect different parameters: one memory must fit all")
    check_dependent(any(found for *_, found in told))
    rows = [n for n, *_ in told]
    pieces = completed(pieces, params, len(store), rows[dist.get_rank()])
    pieces = [replace(piece, start=piece.start + sum(rows[: dist.get_rank()])) for piece in pieces]
    each = rows_of_each(sum(rows), sum(map(len, given)))
    if not sharded:
        device = next(iter(params.values())).device
        return store.grown(all_pieces(pieces, device), sum(rows), shapes, each)
    if not store.sharded:
        check_alike(store)
    store = sharded_store(store).grown(pieces, sum(rows), shapes, each)
    held = together(lambda: store.shapes, "name its rows")
    store.shapes = {name: shape for known in held for name, shape in known.items()}  # also of rows kept elsewhere
    return store


def dealt(examples: Drawn) -> tuple[list[Chunk], list[list[int]]]:
    """What this rank has drawn, and which of its candidates each rank gives. Collective."""
    drawn: list[Chunk] = []

    def candidates() -> tuple[list[Key], list[int], int]:
        seed = examples.generator.initial_seed()
        return keys(_kept(examples, drawn)), _labels(drawn) if examples.balanced else [], seed

    offers, labels, (seed, *_) = zip(*together(candidates, "draw its examples"), strict=True)
    if not any(offers):
        raise ValueError("data is empty on every rank: there is no example to remember")
    if examples.balanced:
        return drawn, balanced_shares(offers, labels, examples.count, seed)
    return drawn, shares(offers, examples.count, seed)


def all_examples(examples: Drawn) -> list[Chunk]:
    """The examples of all ranks, in the order of the ranks. Collective."""
    drawn, given = dealt(examples)
    mine = [
        pytree.tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, chunk)
        for chunk in picked(drawn, given[dist.get_rank()])
    ]
    return [chunk for theirs in together(lambda: mine, "give its examples") for chunk in theirs]


def keys(chunks: Iterable[Chunk]) -> list[Key]:
    """A key for each example, the same wherever it was drawn; examples that are alike differ by their number.

    Examples:
        >>> [n for _, n in keys([(torch.tensor([[1.0], [2.0], [1.0]]), None)])]
        [0, 0, 1]
    """
    seen: Counter[bytes] = Counter()
    result = []
    for chunk in chunks:
        tensors = [t for t in pytree.tree_leaves(chunk) if isinstance(t, Tensor)]
        for i in range(length(chunk)):
            fingerprint = hashed(b"".join(bytes_of(t[i]) for t in tensors))
            result.append((fingerprint, seen[fingerprint]))
            seen[fingerprint] += 1
    return result


def shares(offers: Sequence[Sequence[Key]], count: int | None, seed: int) -> list[list[int]]:
    """Which of its candidates each rank gives: as many from each as can be, none twice, `count` in all.

    Rank r of N offers every N-th of its candidates first, beginning with the r-th, in an order that is random and
    common to all. So ranks that drew the same candidates part them, and of its own a rank gives a uniform draw.

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
        if len(taken) == before:  # there are fewer
            break
    return [sorted(share) for share in given]


def balanced_shares(
    offers: Sequence[Sequence[Key]], labels: Sequence[Sequence[int]], count: int | None, seed: int
) -> list[list[int]]:
    """The same with as equal numbers of each label as can be, over all ranks.

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
        first = sum(map(len, given)) % len(offers)  # whose turn it is to give: else rank 0 would begin with each label
        dealt = shares([*group[first:], *group[:first]], most, seed)
        for turn, chosen in enumerate(dealt):
            r = (first + turn) % len(offers)
            given[r] += [by_rank[r][i] for i in chosen]
    return [sorted(share) for share in given]


def picked(chunks: Iterable[Chunk], rows: Sequence[int]) -> Iterator[Chunk]:
    """Some examples of a list of chunks, by their ascending numbers over all of them."""
    start = 0
    for chunk in chunks:
        stop = start + length(chunk)
        inside = [i - start for i in rows if start <= i < stop]
        if inside:
            yield take(chunk, inside)
        start = stop


def all_pieces(pieces: Iterable[Piece], device: torch.device) -> list[Piece]:
    """The pieces of all ranks, in the order of their rows. Collective."""
    return appended((), sorted(streamed(pieces, device), key=lambda piece: piece.start))


def sharded_store(store: Store) -> Store:
    """The rank's rows of a store that every rank holds whole: of n rows those from ⌊n r / N⌋ on."""
    if store.sharded:
        return store
    n, r, N = len(store), dist.get_rank(), dist.get_world_size()
    parts = [piece.between(n * r // N, n * (r + 1) // N) for piece in store.pieces]
    shard = Store([owned(piece) for piece in parts if piece.block.n], store.tasks, store.shapes, store.each, True)
    shard.grams = dict(store.grams)
    return shard


def whole_store(store: Store) -> Store:
    """The store with the rows of all ranks. Collective if it is sharded."""
    if not store.sharded:
        return store
    device = store.pieces[0].block.device if store.pieces else torch.device("cpu")
    return Store(all_pieces(store.pieces, device), store.tasks, store.shapes, store.each)


def common(generator: Generator) -> Generator:
    """One that draws what rank 0's would: ranks with parts of different sizes have drawn differently. Collective."""
    return Generator().set_state(together(generator.get_state, "tell its random state")[0])


def _order(seed: int, n: int, r: int, N: int) -> list[int]:
    order: list[int] = torch.randperm(n, generator=seeds.generator(seed, "share", n)).tolist()
    return order[r::N] + [i for at, i in enumerate(order) if at % N != r]


def _kept(examples: Iterable[Chunk], into: list[Chunk]) -> Iterator[Chunk]:
    for chunk in examples:
        into.append(chunk)
        yield chunk


def _labels(chunks: Iterable[Chunk]) -> list[int]:
    return [int(label) for _, y in chunks for label in y]
