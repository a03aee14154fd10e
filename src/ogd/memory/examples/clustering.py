"""Replace similar examples by their mean, so that one kept example represents several.

k-means (Lloyd, 1982) divides the candidates of each label into groups,

    min Σ_g Σ_{i in g} |x_i − c_g|²,    c_g the mean of group g,

and the means c_g are kept in place of single examples. The number of groups of a label is in proportion to its
candidates, and at least one if there are as many groups as labels.
"""

import heapq
from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

from ogd.long_work import warn_of_work
from ogd.memory.data.batches import Chunk, concatenate, describe, shapes, take
from ogd.memory.data.labels import are_labels, flat_labels
from ogd.memory.data.sampling import Sample
from ogd.memory.examples.packing import round_to_values

ROUNDS = 10  # of k-means; the groups hardly change after these
LARGE = 1000  # ratio of |mean|² to the mean of |x − mean|²


class ClusteredSample(Sample):
    """The means of `count` groups of similar candidates."""

    def __init__(self, candidates: Sample, count: int):
        super().__init__(candidates.data, count, candidates.generator, candidates.chunk_size)
        self.candidates, self.kept = candidates, count

    def _batches(self, _: object) -> Iterator[Chunk]:
        chunks = list(self.candidates)
        if len({str(shapes(take(chunk, slice(1)))) for chunk in chunks}) > 1:
            raise ValueError("merge= needs examples of one shape, and these have several; use merge=1")
        if chunks:
            yield cluster_means(concatenate(chunks), self.kept, self.generator)


def cluster_means(chunk: Chunk, n: int, generator: Generator) -> Chunk:
    """Return the means of n groups of a batch's examples, each of one label; all examples if there are at most n.

    Examples:
        >>> x, y = torch.tensor([[0.0], [1.0], [8.0], [9.0]]), torch.tensor([0, 0, 1, 1])
        >>> cluster_means((x, y), 2, Generator().manual_seed(0))
        (tensor([[0.5000], [8.5000]]), tensor([0, 1]))
    """
    x, y = chunk
    tensors = [t for t in pytree.tree_leaves(x) if isinstance(t, Tensor)]
    if strange := [t for t in tensors if not t.is_floating_point()]:
        raise ValueError(
            f"merge= keeps means of inputs, and some are {describe(strange[0])}: give floating-point numbers, or "
            "use merge=1 (tokens have no mean)"
        )
    y = flat_labels(y)
    classes = y if are_labels(y) else None
    if not (y is None or classes is not None or (isinstance(y, Tensor) and y.is_floating_point())):
        raise ValueError(f"merge= needs one label for each example, not {describe(y)}; use merge=1")
    points = torch.cat([_centre(t.reshape(len(t), -1)).float() for t in tensors], 1)
    group = assign_groups(points, classes, min(n, len(points)), generator)
    first = torch.stack([(group == g).nonzero()[0, 0] for g in range(int(group.max()) + 1)])
    y = y[first] if classes is not None else None if y is None else group_means(y, group)
    return pytree.tree_map(lambda t: round_to_values(group_means(t, group), t) if isinstance(t, Tensor) else t, x), y


def _centre(t: Tensor) -> Tensor:
    """Subtract the mean of numbers that are large compared with their spread (years), for distances in float32."""
    mean = t.mean(0)
    spread = (t - mean).square().sum(1).mean()
    return t - mean if bool(mean.square().sum() > LARGE * spread) else t


def group_means(t: Tensor, group: Tensor) -> Tensor:
    """Return the mean of the rows of t in each group; rows of group −1 are left out.

    Examples:
        >>> group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, -1]))
        tensor([2.])
    """
    inside = group >= 0
    own = group[inside].to(t.device)
    total = t.new_zeros(int(group.max()) + 1, *t.shape[1:], dtype=torch.float64).index_add_(0, own, t[inside].double())
    size = own.bincount().double().view(-1, *[1] * (t.ndim - 1))
    return (total / size).to(t.dtype)


def assign_groups(points: Tensor, labels: Tensor | None, n: int, generator: Generator) -> Tensor:
    """Return a group from 0 to n − 1 for each point (m, d): near points of one label share a group; n ≤ m.

    The groups are in random order. With fewer groups than labels, points of the rarest labels get −1.
    """
    classes, of = (labels if labels is not None else torch.zeros(len(points))).unique(return_inverse=True)
    sizes: list[int] = of.bincount(minlength=len(classes)).tolist()
    shares = proportional_shares(sizes, n)
    pairs = [size * share for size, share in zip(sizes, shares, strict=True)]
    work, distances = ROUNDS * sum(pairs) * points.shape[1], 4 * max(pairs)
    warn_of_work(f"merging {len(points):,} examples into {n:,}", work / 1e9, points.nbytes + distances)
    found = torch.full((len(points),), -1)
    number, start = torch.randperm(n, generator=generator), 0
    for label, share in enumerate(shares):
        if share:
            own = of == label
            found[own.cpu()] = number[start + k_means(points[own], share, generator).cpu()]
        start += share
    return found


def k_means(points: Tensor, k: int, generator: Generator) -> Tensor:
    """Return a group from 0 to k − 1 for each point (m, d), that of the nearest mean; none is empty, k ≤ m.

    Examples:
        >>> k_means(torch.tensor([[0.0], [9.0], [1.0]]), 2, Generator().manual_seed(1)).bincount().sort().values
        tensor([1, 2])
    """
    centres = points[torch.randperm(len(points), generator=generator)[:k].to(points.device)]
    for _ in range(ROUNDS):
        distance, group = torch.cdist(points, centres).min(1)
        group = _none_empty(distance, group, k)
        centres = group_means(points, group)
    return group


def _none_empty(distance: Tensor, group: Tensor, k: int) -> Tensor:
    """Give each empty group the point that is furthest from its mean, among groups of two or more points."""
    sizes, group = group.bincount(minlength=k), group.clone()
    for empty in (sizes == 0).nonzero().flatten().tolist():
        furthest = int(torch.where(sizes[group] > 1, distance, -1).argmax())
        sizes[group[furthest]] -= 1
        sizes[empty], group[furthest] = 1, empty
    return group


def proportional_shares(sizes: list[int], n: int) -> list[int]:
    """Divide n among groups in proportion to their sizes, at most `size` to each (Huntington and Hill).

    Each unit goes to the group with the largest size / √(s (s + 1)), where s is its share so far.

    Examples:
        >>> proportional_shares([90, 30, 1], 13), proportional_shares([5, 9, 7], 2)
        ([9, 3, 1], [0, 1, 1])
    """
    shares = [0] * len(sizes)
    waiting = [(float("-inf"), -size, i) for i, size in enumerate(sizes) if size]
    heapq.heapify(waiting)
    for _ in range(min(n, sum(sizes))):
        _, size, i = heapq.heappop(waiting)
        shares[i] += 1
        if shares[i] < -size:
            heapq.heappush(waiting, (size / (shares[i] * (shares[i] + 1)) ** 0.5, size, i))
    return shares
