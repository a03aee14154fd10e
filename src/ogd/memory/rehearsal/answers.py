"""Examples with the outputs that the model gives for them, as they are to be kept."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ogd.memory.inputs.batches import length
from ogd.memory.inputs.examples import Chunk
from ogd.memory.inputs.outputs import Chosen
from ogd.memory.rehearsal.examples import emptied, filled
from ogd.memory.rehearsal.loss import check_classes, next_tokens
from ogd.memory.rehearsal.packed import packed


def answered(
    chosen: Chosen, chunks: Iterable[Chunk], device: torch.device
) -> Iterator[tuple[Any, Tensor | None, Tensor]]:
    """The examples as (x, y, z). Labels that are no tensor are left out."""
    for chunk in chunks:
        x, y = pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, chunk)
        n, y = length((x, y)), y if isinstance(y, Tensor) else None
        if not n:
            continue
        tensors, structure = emptied(x)
        x = filled(structure, [packed(t)[:] for t in tensors])  # as they will be kept
        z = chosen.scores(x)
        if not z.ndim or len(z) != n or not z.is_floating_point():
            raise ValueError(f"nothing was stored: the model gives {_said(z)} for {n} examples; give logits=")
        if not z.isfinite().all():
            raise ValueError("nothing was stored: the model gives outputs that are not finite (NaN or infinite)")
        y = next_tokens(y, tensors)
        check_classes(z, y, chosen.classes)
        yield x, y, z


def _said(z: Tensor) -> str:
    return f"{str(z.dtype).removeprefix('torch.')} outputs of shape {tuple(z.shape)}"
