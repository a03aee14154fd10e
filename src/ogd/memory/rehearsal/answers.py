"""Examples with the outputs that the model gives for them, as they are to be kept."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ogd.memory.algebra.work import say
from ogd.memory.gradients.per_example import CHUNK_BYTES
from ogd.memory.inputs.batches import Chunk, described, length, moved, take
from ogd.memory.inputs.outputs import Chosen
from ogd.memory.rehearsal.examples import classifies, emptied, filled
from ogd.memory.rehearsal.loss import check_classes, next_tokens
from ogd.memory.rehearsal.packed import packed


def answered(
    chosen: Chosen, chunks: Iterable[Chunk], device: torch.device, expected: int | None = None
) -> Iterator[tuple[Any, Tensor | None, Tensor]]:
    """The examples as (x, y, z), of which about `expected` come. Labels that are no tensor are left out."""
    most = 0  # examples at a time
    for chunk in chunks:
        x, y = moved(chunk, device)
        n, y = length((x, y)), y if isinstance(y, Tensor) else None
        if not n:
            continue
        tensors, structure = emptied(x)
        x = filled(structure, [packed(t)[:] for t in tensors])  # as they will be kept
        most = most or _fitting(chosen, take(x, slice(0, 1)), expected or n)
        z = torch.cat([_scores(chosen, take(x, slice(i, i + most)), min(most, n - i)) for i in range(0, n, most)])
        y = _told(next_tokens(_flat(y), tensors), z)
        check_classes(z, y, chosen.classes)
        yield x, y, z


def _flat(y: Tensor | None) -> Tensor | None:
    """Labels of shape (B, 1), as tables have them, as (B,)."""
    return y.squeeze(1) if y is not None and y.ndim == 2 and y.shape[1] == 1 else y


def _told(y: Tensor | None, z: Tensor) -> Tensor | None:
    """The labels; warn where they look like classes and cannot be rehearsed."""
    if y is not None and not y.is_floating_point() and z.shape[-1:] > (1,) and z.ndim > 1 and not classifies(z, y):
        warnings.warn(
            f"labels are {described(y)} for outputs {tuple(z.shape)}, so only the outputs are rehearsed: give each "
            "example's class, one whole number, to rehearse labels too",
            stacklevel=6,
        )
    return y


def _scores(chosen: Chosen, x: Any, n: int) -> Tensor:
    z = chosen.scores(x)
    if not z.ndim or len(z) != n or not z.is_floating_point():
        raise ValueError(f"nothing was stored: the model gives {described(z)} for {n} examples; give logits=")
    if not z.isfinite().all():
        raise ValueError("nothing was stored: the model gives outputs that are not finite (NaN or infinite)")
    return z


def _fitting(chosen: Chosen, one: Any, expected: int) -> int:
    """How many examples have outputs of CHUNK_BYTES; warn if all of them would take a gigabyte."""
    nbytes = sum(t.nbytes for t in (chosen.scores(one), *emptied(one)[0]))
    say(f"keeping up to {expected:,} examples with their outputs", 0, expected * nbytes)
    return max(CHUNK_BYTES // max(nbytes, 1), 1)
