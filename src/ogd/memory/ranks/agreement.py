"""A check that all ranks hold the same memory, by its fingerprint."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from ogd.memory.ranks.collective import gather_results


def check_same(read: Callable[[], tuple[bytes, str]]) -> None:
    """Raise on every rank unless `read` returns the same fingerprint on all, with a description. Collective."""
    answers = gather_results(read, "read its memory")
    if len({fingerprint for fingerprint, _ in answers}) > 1:
        held = "; ".join(f"rank {r} holds {words}" for r, (_, words) in enumerate(answers))
        raise RuntimeError(
            f"the ranks hold different memories, so their weights would drift apart ({held}): call remember on all "
            "ranks after init_process_group, and load the same file on all; or pass distributed=False if "
            "each rank trains its own model"
        )


def bytes_of(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
