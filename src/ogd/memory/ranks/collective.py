"""The other processes of `torch.distributed`: what one rank says to all, and what all of them add up to.

`gather_results`, `sum_over_ranks` and `stream_items` are collective. All ranks must call them in the same order,
otherwise some wait for ever.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Generator, Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class _Outline:
    """The shape and type of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


def _outline(t: Tensor) -> _Outline:
    return _Outline(t.shape, t.dtype)


def has_several_ranks() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_results(work: Callable[[], T], what: str) -> list[T]:
    """What `work` returned on each rank. An error on one rank is raised on all, so that none waits for ever."""
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, (result, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, (_, message) in enumerate(said):
        if message is not None:
            raise RuntimeError(f"rank {rank} could not {what}, so no rank did: {message}")
    return [result for result, _ in said]


def sum_over_ranks(*ts: Tensor) -> list[Tensor]:
    """The ranks' tensors added up, the same bits on all of them; in one message, because each has its delay."""
    total = torch.cat([t.reshape(-1).to(_exchange_device()) for t in ts])
    dist.all_reduce(total)
    parts = total.split([t.numel() for t in ts])
    return [part.view(t.shape).to(t) for part, t in zip(parts, ts, strict=True)]


def stream_items(items: Iterable[T], device: torch.device) -> Iterator[T]:
    """Each rank's items on all ranks, one at a time, in the order of the ranks.

    An item is a dataclass of tensors, plain values and other such dataclasses: the pieces of a store.
    """
    own = list(items)
    outlines = gather_results(lambda: [_map_tensors(item, _outline) for item in own], "list its rows")
    for source, those in enumerate(outlines):
        for i, outline in enumerate(those):
            if source == dist.get_rank():
                _map_tensors(own[i], partial(_send, source=source))
                yield own[i]
            else:
                yield _map_tensors(outline, partial(_receive, source=source, device=device))


def common_generator(generator: Generator) -> Generator:
    """Return a generator in the state of rank 0's: ranks with parts of different sizes have drawn differently."""
    return Generator().set_state(gather_results(generator.get_state, "send its random state")[0])


def torch_seed(shared: bool = False) -> int:
    """Return torch's seed, within the 63 bits that a file holds; if ranks share a memory, that of rank 0."""
    seed = gather_results(torch.initial_seed, "send its seed")[0] if shared else torch.initial_seed()
    return seed % 2**63


def clone_tensors(item: T) -> T:
    """The same with tensors of its own: a slice's tensors would keep the whole in memory."""
    copy: T = _map_tensors(item, torch.clone)
    return copy


def _map_tensors(item: Any, change: Callable[[Any], Any]) -> Any:
    """A dataclass with every tensor in it, or outline of one, changed."""
    if isinstance(item, Tensor | _Outline):
        return change(item)
    if not is_dataclass(item) or isinstance(item, type):
        return item
    return replace(item, **{f.name: _map_tensors(getattr(item, f.name), change) for f in fields(item)})


def _send(t: Tensor, source: int) -> Tensor:
    bytes_ = t.detach().to(_exchange_device()).contiguous().reshape(-1).view(torch.uint8)
    if bytes_.numel():
        dist.broadcast(bytes_, source)
    return t


def _receive(outline: _Outline, source: int, device: torch.device) -> Tensor:
    t = torch.empty(outline.shape, dtype=outline.dtype, device=_exchange_device())
    if t.numel():
        dist.broadcast(t.view(-1).view(torch.uint8), source)
    return t.to(device)


def _exchange_device() -> torch.device:
    """Where tensors must be for the ranks to exchange them."""
    if "nccl" in dist.get_backend() and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
