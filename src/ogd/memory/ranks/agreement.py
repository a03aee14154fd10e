"""Whether all ranks hold the same memory: each sends the fingerprint of its own."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from ogd.memory.ranks.collective import gather_results


def check_same(read: Callable[[], tuple[bytes, str]]) -> None:
    """Raise on every rank unless all of them read the same fingerprint, given with its memory in words. Collective."""
    said = gather_results(read, "read its memory")
    if len({found for found, _ in said}) > 1:
        held = "; ".join(f"rank {r} holds {words}" for r, (_, words) in enumerate(said))
        raise RuntimeError(
            f"the ranks hold different memories, so their weights would drift apart ({held}): call remember on all "
            "ranks after init_process_group, and load the same file on all; or give distributed=False if "
            "each rank trains a model of its own"
        )


def bytes_of(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
