"""Exchange of results and tensors between the ranks of `torch.distributed`.

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


def has_several_ranks() -> bool:
    """Return whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_results(work: Callable[[], T], what: str) -> list[T]:
    """Return the results of `work` on all ranks. Raise an error of one rank on all, so that none waits for ever."""
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (result, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, (_, message) in enumerate(answers):
        if message is not None:
            raise RuntimeError(f"rank {rank} could not {what}, so no rank did: {message}")
    return [result for result, _ in answers]


def sum_over_ranks(*ts: Tensor) -> list[Tensor]:
    """Return the sums of the ranks' tensors, bit-identical on all ranks, sent in one message to save latency."""
    total = torch.cat([t.reshape(-1).to(_exchange_device()) for t in ts])
    dist.all_reduce(total)
    parts = total.split([t.numel() for t in ts])
    return [part.view(t.shape).to(t) for part, t in zip(parts, ts, strict=True)]


def stream_items(items: Iterable[T], device: torch.device) -> Iterator[T]:
    """Yield the items of all ranks, one at a time, in the order of the ranks.

    An item is a dataclass of tensors, plain values and such dataclasses, for example a piece of a store.
    """
    own = list(items)
    outline = partial(_map_tensors, change=lambda t: _Outline(t.shape, t.dtype))
    outlines = gather_results(lambda: [outline(item) for item in own], "list its rows")
    for source, those in enumerate(outlines):
        for i, received in enumerate(those):
            if source == dist.get_rank():
                _map_tensors(own[i], partial(_send, source=source))
                yield own[i]
            else:
                yield _map_tensors(received, partial(_receive, source=source, device=device))


def common_generator(generator: Generator) -> Generator:
    """Return a generator in the state of rank 0's, because ranks may have drawn different amounts."""
    return Generator().set_state(gather_results(generator.get_state, "send its random state")[0])


def torch_seed(shared: bool = False) -> int:
    """Return torch's seed in the 63 bits that a file can hold, from rank 0 if the ranks share a memory."""
    seed = gather_results(torch.initial_seed, "send its seed")[0] if shared else torch.initial_seed()
    return seed % 2**63


def clone_tensors(item: T) -> T:
    """Return a copy with cloned tensors, because views would keep the whole tensors in memory."""
    copy: T = _map_tensors(item, torch.clone)
    return copy


def _map_tensors(item: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dataclass with `change` applied to every tensor, or outline of a tensor, in it."""
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
    """Return the device on which the ranks exchange tensors."""
    if "nccl" in dist.get_backend() and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
