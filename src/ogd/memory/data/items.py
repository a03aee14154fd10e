"""Draw items of a data set, which may be any objects, and look inside them."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ogd.memory.data.batches import describe, is_indexed
from ogd.memory.data.sampling import choose_rows, covers_dataset, most_batches

Collate = Callable[[list[Any]], Any]
_VALUES = (Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None))


def collate_of(data: object) -> Collate | None:
    """Return the function by which a DataLoader makes batches; None for other data."""
    return data.collate_fn if isinstance(data, DataLoader) else None


def draw_items(data: object, count: int | None, generator: Generator) -> list[Any]:
    """Return `count` items of a data set, drawn uniformly without replacement; all items if there are fewer.

    Args:
        data: a DataLoader, a Dataset or a list of items.
        count: the number of items; None for all.
        generator: the source of the random numbers.

    Examples:
        >>> draw_items([{"words": 2}, {"words": 5}], 1, Generator().manual_seed(0))
        [{'words': 2}]
    """
    numbers: list[Any] | None = None
    if isinstance(data, DataLoader):
        if data.batch_sampler is None:
            raise ValueError(
                "data is a DataLoader of ready batches (batch_size=None): give the data set of single items"
            )
        batches = iter(data.batch_sampler)
        if not isinstance(data.dataset, IterableDataset) and not covers_dataset(data):
            try:
                batches = islice(batches, len(data))  # a sampler may repeat itself for ever (ultralytics)
            except TypeError:  # a sampler without a length
                batches = islice(batches, most_batches(data))
            numbers = list(dict.fromkeys(number for batch in batches for number in batch))
        data = data.dataset
    if isinstance(data, IterableDataset):
        return _draw_from_stream(data, count, generator)
    if isinstance(data, tuple | Mapping) or not (isinstance(data, Dataset) or is_indexed(data)):
        raise TypeError(
            "data must be a DataLoader, a Dataset or a list of items when the memory has a loss=, not "
            f"{describe(data)}: for tensors give TensorDataset(x, y)"
        )
    rows = choose_rows(len(data) if numbers is None else len(numbers), count, generator).tolist()  # type: ignore[arg-type]
    return [data[row if numbers is None else numbers[row]] for row in rows]  # type: ignore[index]


def parts(item: Any) -> Iterator[Any]:
    """Yield the tensors, arrays, numbers and texts in an item, however deep, also in the attributes of an object.

    Examples:
        >>> from types import SimpleNamespace
        >>> sorted(parts([SimpleNamespace(a=1, b=(2, 3))]))
        [1, 2, 3]
    """
    waiting, seen = [item], list[Any]()  # objects in `seen` stay alive, so that none gets the number of another
    numbers: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, _VALUES):
            yield one
        elif id(one) not in numbers:
            seen.append(one)
            numbers.add(id(one))
            if isinstance(one, Mapping):
                waiting += [part for pair in one.items() for part in pair]
            elif isinstance(one, list | tuple):
                waiting += one
            else:
                waiting += vars(one).values() if hasattr(one, "__dict__") else []


def nbytes_of(item: Any) -> int:
    """Return the bytes of the values in an item.

    Examples:
        >>> nbytes_of({"image": torch.zeros(3, 4), "name": "cat"})
        60
    """
    return sum(_nbytes(part) for part in parts(item))


def bytes_in(item: Any) -> bytes:
    """Return the bytes of the values in an item, for a fingerprint."""
    return b"".join(_bytes(part) for part in parts(item))


def _nbytes(part: Any) -> int:
    if isinstance(part, Tensor) and part.layout is not torch.strided:
        return part._nnz() * (part.element_size() + 16)
    if isinstance(part, Tensor | np.ndarray | np.generic):
        return int(part.nbytes)
    return (
        len(part.encode(errors="surrogatepass"))
        if isinstance(part, str)
        else len(part)
        if isinstance(part, bytes)
        else 8
    )


def _bytes(part: Any) -> bytes:
    if isinstance(part, Tensor):
        dense = part.detach().to_dense() if part.layout is not torch.strided else part.detach()
        return dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode()


def _draw_from_stream(data: IterableDataset[Any], count: int | None, generator: Generator) -> list[Any]:
    """Give each item a random key, and return the items with the smallest keys, in their order."""
    if count is None:
        return list(data)
    keyed = ((float(torch.rand((), generator=generator, dtype=torch.float64)), i, item) for i, item in enumerate(data))
    kept = heapq.nsmallest(count, keyed, key=lambda one: one[:2])
    return [item for _, _, item in sorted(kept, key=lambda one: one[1])]
