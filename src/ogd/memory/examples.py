"""Data → the examples to remember: some drawn uniformly from a loader, a data set or tensors, in chunks."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

Chunk = tuple[Any, Any]  # x and y, batch first; x may be a tensor or tuples, lists and dicts of tensors


def draw(data: object, count: int | None, generator: Generator, chunk_size: int) -> Iterator[Chunk]:
    """`count` examples of `data` without replacement (all of them for None, or where there are fewer)."""
    for x, y in _draw(data, count, generator, chunk_size):
        for start in range(0, length((x, y)), chunk_size):
            yield take((x, y), slice(start, start + chunk_size))


def _draw(data: object, count: int | None, generator: Generator, chunk_size: int) -> Iterator[Chunk]:
    if isinstance(data, tuple | list) and len(data) == 2:
        _check_pair(data)
        yield from _of_tensors(data[0], data[1], count, generator, chunk_size)
    elif isinstance(data, DataLoader):
        if count is None:
            yield from map(as_pair, data)
        elif _covers_dataset(data):
            yield from _of_dataset(data.dataset, count, generator, chunk_size, data.collate_fn)
        else:
            yield from _of_batches(data, count, generator, chunk_size)
    elif isinstance(data, IterableDataset):
        yield from _draw(DataLoader(data, chunk_size), count, generator, chunk_size)
    elif isinstance(data, Dataset) or _is_indexed(data):
        yield from _of_dataset(data, count, generator, chunk_size, None)
    else:
        hint = ": a dictionary of inputs is the x of a pair (x, y)" if isinstance(data, Mapping) else ""
        kinds = "a DataLoader, a Dataset or a pair of tensors (x, y)"
        raise TypeError(f"data must be {kinds}, not {type(data).__name__}{hint}")


def length(tree: Any) -> int:
    """The number of examples in a batch: the common first axis of all its tensors."""
    shapes = sorted({tuple(t.shape) for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)})
    if not shapes:
        raise ValueError("data holds no tensor: examples must be tensors, or tuples, lists and dicts of them")
    if () in shapes or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(f"the tensors of a batch must share their first axis; found shapes {shapes}")
    return int(shapes[0][0])


def take(tree: Any, rows: Any) -> Any:
    """The given rows of every tensor of a batch."""
    return pytree.tree_map(lambda t: t[rows] if isinstance(t, Tensor) else t, tree)


def as_pair(batch: Any) -> Chunk:
    """A loader's batch as (x, y); a batch of anything but two parts is all x."""
    return (batch[0], batch[1]) if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)


def _check_pair(data: tuple[Any, ...] | list[Any]) -> None:
    if isinstance(data, list) and all(isinstance(part, tuple | list) for part in data):
        raise ValueError(
            "data is a list of two tuples, which may be two examples or x and y: give two examples as stacked "
            "tensors (x, y), and nested x and y as a tuple (x, y)"
        )
    if strange := [leaf for leaf in pytree.tree_leaves(data) if isinstance(leaf, np.ndarray)]:
        raise TypeError(f"data holds {len(strange)} NumPy arrays: give tensors, torch.from_numpy(array)")


def _is_indexed(data: object) -> bool:
    """Whether data is a sequence of examples, without being called a Dataset."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str | bytes)


def _choose(size: int, count: int | None, generator: Generator) -> Tensor:
    if count is None or count >= size:
        return torch.arange(size)
    return torch.randperm(size, generator=generator)[:count].sort().values


def _of_tensors(x: Any, y: Any, count: int | None, generator: Generator, chunk_size: int) -> Iterator[Chunk]:
    rows = _choose(length((x, y)), count, generator)
    for start in range(0, len(rows), chunk_size):
        yield take((x, y), rows[start : start + chunk_size])


def _of_dataset(
    dataset: Any, count: int | None, generator: Generator, chunk_size: int, collate: Any
) -> Iterator[Chunk]:
    rows: list[int] = _choose(len(dataset), count, generator).tolist()
    if rows:
        loader = DataLoader(Subset(dataset, rows), chunk_size, collate_fn=collate, generator=generator)
        yield from map(as_pair, loader)


def _covers_dataset(loader: DataLoader[Any]) -> bool:
    """Whether an epoch is the whole data set, once: then examples can be picked without reading all of it."""
    sampler = loader.sampler
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )
    own_batches = loader.batch_sampler is None or type(loader.batch_sampler) is not BatchSampler
    return whole and not own_batches and not isinstance(loader.dataset, IterableDataset)


def _of_batches(loader: Any, count: int, generator: Generator, chunk_size: int) -> Iterator[Chunk]:
    """A uniform draw from batches of unknown number: examples get random keys, the smallest keys stay."""
    kept: list[tuple[float, Chunk]] = []
    for batch in map(as_pair, loader):
        keys = torch.rand(length(batch), generator=generator, dtype=torch.float64).tolist()
        kept += [(key, take(batch, slice(i, i + 1))) for i, key in enumerate(keys)]
        kept = sorted(kept, key=lambda pair: pair[0])[:count]
    chunk: list[Chunk] = []
    for _, example in kept:
        if chunk and (len(chunk) == chunk_size or _shapes(chunk[0]) != _shapes(example)):
            yield _stack(chunk)
            chunk = []
        chunk.append(example)
    if chunk:
        yield _stack(chunk)


def _shapes(example: Chunk) -> list[Any]:
    return [t.shape for t in pytree.tree_leaves(example) if isinstance(t, Tensor)]


def _stack(examples: list[Chunk]) -> Chunk:
    leaves = [pytree.tree_flatten(e)[0] for e in examples]
    spec = pytree.tree_flatten(examples[0])[1]
    merged = [torch.cat(ts) if isinstance(ts[0], Tensor) else ts[0] for ts in zip(*leaves, strict=True)]
    x, y = pytree.tree_unflatten(merged, spec)
    return x, y
