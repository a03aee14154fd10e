"""Draw examples from a loader, a data set or tensors: uniformly, or equal numbers of each label."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from ogd.memory.data.batches import (
    Chunk,
    are_batches,
    as_pair,
    concatenate,
    describe,
    is_batch,
    is_indexed,
    length,
    shapes,
    take,
)
from ogd.memory.data.budget import equal_shares
from ogd.memory.data.labels import are_labels, flat_labels

T = TypeVar("T")
REPEATS = 10  # epochs of a sampler without a length that are read: some never end


class Sample:
    """`count` examples of `data`, drawn without replacement, in chunks; all examples if there are fewer.

    Args:
        data: a DataLoader, a Dataset, tensors, or a list of batches or examples.
        count: the number of examples; None for all.
        generator: the source of the random numbers.
        chunk_size: the largest number of examples in a chunk.
        balanced: draw equal numbers of each label, as far as possible.
        labelled: raise if a batch has no labels.

    `seen` counts the examples that have been yielded.
    """

    def __init__(
        self,
        data: object,
        count: int | None,
        generator: Generator,
        chunk_size: int,
        balanced: bool = False,
        labelled: bool = False,
    ):
        self.data, self.count, self.generator, self.chunk_size = data, count, generator, chunk_size
        self.balanced, self.labelled = balanced, labelled or balanced
        self.seen = 0

    def __iter__(self) -> Iterator[Chunk]:
        for x, y in self._batches(self.data):
            if self.labelled and y is None:
                why = 'choose="balanced"' if self.balanced else 'outputs="true"'
                raise ValueError(
                    f"{why} needs a label for each example, but "
                    f"the batches are {describe(x)}: give pairs (x, y), or dictionaries with the key 'labels'"
                )
            for start in range(0, length((x, y)), self.chunk_size):
                chunk = take((x, y), slice(start, start + self.chunk_size))
                self.seen += length(chunk)
                yield chunk

    def _batches(self, data: object) -> Iterator[Chunk]:
        if isinstance(data, DataLoader):
            yield from self._of_loader(data)
        elif isinstance(data, IterableDataset):
            yield from self._of_batches(DataLoader(data, self.chunk_size))
        elif is_batch(data):
            yield self._of_tensors(*as_pair(data))
        elif isinstance(data, Sequence) and not isinstance(data, Dataset | str | bytes) and are_batches(data):
            yield from self._of_batches(data)
        elif isinstance(data, Dataset) or is_indexed(data):
            yield from self._of_dataset(data, None)
        else:
            keys = f" with the keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else ""
            raise TypeError(
                "data must be a DataLoader, a Dataset, a pair of tensors (x, y), a list of these or a dictionary of "
                f"tensors with the key 'labels', not {type(data).__name__}{keys}: for graphs and other objects use "
                "ogd.ExampleMemory(model, loss=…) (docs/any-loss.md)"
            )

    def _of_tensors(self, x: Any, y: Any) -> Chunk:
        if self.count is None or self.count >= length((x, y)):
            return x, y
        if self.balanced and y is not None:
            return take((x, y), balanced_rows(_labels(y), self.count, self.generator))  # type: ignore[no-any-return]
        return take((x, y), choose_rows(length((x, y)), self.count, self.generator))  # type: ignore[no-any-return]

    def _of_loader(self, loader: DataLoader[Any]) -> Iterator[Chunk]:
        if self.count is not None and covers_dataset(loader) and not self.balanced:
            yield from self._of_dataset(loader.dataset, loader.collate_fn, loader)
        else:
            yield from self._of_batches(islice(loader, most_batches(loader)))

    def _of_dataset(self, dataset: Any, collate: Any, whole: DataLoader[Any] | None = None) -> Iterator[Chunk]:
        """Draw from a data set; from the batches of the whole loader if an example is not a row.

        A collator that packs the texts of a batch into one row gets one example at a time.
        """
        if self.balanced and self.count is not None:  # labels are known only once the examples are read
            yield from self._of_batches(DataLoader(dataset, self.chunk_size, collate_fn=collate))
            return
        rows: list[int] = choose_rows(len(dataset), self.count, self.generator).tolist()
        if not rows:
            return
        for size in (self.chunk_size, 1):
            loader = DataLoader(Subset(dataset, rows), size, collate_fn=collate, generator=self.generator)
            chunks = map(as_pair, loader)
            first = next(chunks)
            if whole is None or length(first) == min(len(rows), size):
                yield first
                yield from chunks
                return
        assert whole is not None
        yield from self._of_batches(whole)

    def _of_batches(self, batches: Iterable[Any]) -> Iterator[Chunk]:
        """Draw from batches of unknown number: give each example a random key, and keep the smallest keys."""
        if self.count is None:
            yield from map(as_pair, batches)
            return
        kept: list[tuple[float, int, Chunk]] = []  # key, label (0 unless balanced), example
        for batch in map(as_pair, batches):
            keys = torch.rand(length(batch), generator=self.generator, dtype=torch.float64).tolist()
            balanced = self.balanced and batch[1] is not None
            labels = _labels(batch[1]).tolist() if balanced else [0] * len(keys)
            kept += [(k, c, take(batch, slice(i, i + 1))) for i, (k, c) in enumerate(zip(keys, labels, strict=True))]
            kept = trim(kept, self.count)
        chunk: list[Chunk] = []
        for _, _, example in kept:
            if chunk and (len(chunk) == self.chunk_size or shapes(chunk[0]) != shapes(example)):
                yield concatenate(chunk)
                chunk = []
            chunk.append(example)
        if chunk:
            yield concatenate(chunk)


def _labels(y: Any) -> Tensor:
    y = flat_labels(y)
    if not are_labels(y):
        raise ValueError(f'choose="balanced" needs a label for each example, integers of shape (B,), not {describe(y)}')
    assert isinstance(y, Tensor)
    return y


def choose_rows(size: int, count: int | None, generator: Generator) -> Tensor:
    if count is None or count >= size:
        return torch.arange(size)
    return torch.randperm(size, generator=generator)[:count].sort().values


def most_batches(loader: DataLoader[Any]) -> int | None:
    """Return after how many batches to stop, if neither the loader nor its sampler says when it ends; else None."""
    try:
        len(loader)
    except TypeError:
        if not isinstance(loader.dataset, IterableDataset) and hasattr(loader.dataset, "__len__"):
            return REPEATS * len(loader.dataset) // (loader.batch_size or 1) + 1
    return None


def covers_dataset(loader: DataLoader[Any]) -> bool:
    """Return whether an epoch is the data set once, so that examples can be drawn without reading all of it."""
    sampler = loader.sampler
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    own_batches = loader.batch_sampler is None or type(loader.batch_sampler) is not BatchSampler
    return whole and not own_batches and not isinstance(loader.dataset, IterableDataset)


def balanced_rows(y: Tensor, count: int, generator: Generator) -> Tensor:
    """Return `count` rows of the labels y (n,), ascending, drawn uniformly within each label.

    Examples:
        >>> y = torch.tensor([0] * 97 + [1] * 3)
        >>> y[balanced_rows(y, 10, torch.Generator())].bincount()
        tensor([7, 3])
    """
    keys = torch.rand(len(y), generator=generator, dtype=torch.float64).tolist()
    kept = trim(list(zip(keys, y.tolist(), range(len(y)), strict=True)), count)
    return torch.tensor(sorted(row for _, _, row in kept), dtype=torch.long)


def trim(drawn: Sequence[tuple[float, int, T]], count: int) -> list[tuple[float, int, T]]:
    """Return the `count` triples (key, label, example) with the smallest keys, in equal shares for each label.

    The result is the same if the triples come batch by batch, and each time the kept ones are trimmed with the new.

    Examples:
        >>> trim([(0.1, 7, "a"), (0.2, 7, "b"), (0.3, 8, "c")], 2)
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
