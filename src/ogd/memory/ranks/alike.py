"""Whether all ranks hold the same memory: each tells the fingerprint of its own."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from ogd.memory.projection.store import Store
from ogd.memory.ranks.collective import together


def digest(store: Store) -> bytes:
    """A fingerprint of all that is stored; of a sharded store, of what its ranks must have in common.

    Examples:
        >>> digest(Store()) == digest(Store()), digest(Store()) == digest(Store(tasks=[1]))
        (True, False)
    """
    shapes = sorted((name, tuple(shape)) for name, shape in store.shapes.items())
    parts = [repr((store.tasks, store.each, shapes, store.sharded)).encode()]
    for piece in () if store.sharded else store.pieces:
        parts.append(repr((piece.names, piece.start)).encode())
        parts += [hashed(bytes_of(t)) for _, t in sorted(piece.block.tensors().items())]
    return hashed(b"".join(parts))


def check_alike(store: Store) -> None:
    """Raise on every rank unless all of them hold the same store. Collective."""
    check_same(lambda: (digest(store), f"{len(store):,} directions in {store.nbytes:,} bytes"))


def check_same(read: Callable[[], tuple[bytes, str]]) -> None:
    """Raise on every rank unless all of them read the same fingerprint, given with its memory in words. Collective."""
    said = together(read, "read its memory")
    if len({found for found, _ in said}) > 1:
        held = "; ".join(f"rank {r} holds {words}" for r, (_, words) in enumerate(said))
        raise RuntimeError(
            f"the ranks hold different memories, so their weights would drift apart ({held}): call remember on all "
            "ranks after init_process_group, and load the same file on all; or give Memory(distributed=False) if "
            "each rank trains a model of its own"
        )


def bytes_of(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def hashed(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
