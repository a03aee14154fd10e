"""Blocks of some slices of their parameters along the first axis, as FSDP divides them, and whole blocks again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ogd.memory.blocks.block import Block
from ogd.memory.blocks.convolved import Convolved
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.sparse import Sparse


@dataclass(frozen=True)
class Cut:
    """Slices start to stop of a parameter's first axis, which has `size` of them."""

    start: int
    stop: int
    size: int


def can_cut(block: Block, cuts: Sequence[Cut]) -> bool:
    """Return whether a block can be cut along the first axis of all its parameters, in its own form on every rank."""
    match block:
        case Dense():
            return True
        case Factored():
            return block.out_first or not block.bias
        case Convolved(groups=1) | Sparse():
            return all(cut.stop > cut.start for cut in cuts)
    return False


def cut_block(block: Block, cut: Cut) -> Block:
    """Return the block of some slices of all its parameters.

    Examples:
        >>> block = Dense(torch.arange(6.0).view(1, 6))
        >>> cut_block(block, Cut(1, 3, 3)).G
        tensor([[2., 3., 4., 5.]])
    """
    a, b = cut.start, cut.stop
    match block:
        case Factored(out_first=False):
            return replace(block, A=block.A[:, a:b].clone())
        case Factored() | Convolved():
            return replace(block, D=block.D[:, a:b].clone())
        case Sparse():
            inside = (block.index >= a) & (block.index < b)
            index = torch.where(inside, block.index - a, 0)
            return replace(block, index=index, D=block.D * inside.unsqueeze(-1), V=b - a)
    assert isinstance(block, Dense)
    each = block.width // cut.size
    return Dense(block.G[:, a * each : b * each].clone())


def whole_block(parts: Sequence[Block], cuts: Sequence[Cut]) -> Block:
    """Return the block of which these are all parts, in the order of the slices.

    Examples:
        >>> block, cuts = Dense(torch.arange(6.0).view(1, 6)), [Cut(0, 1, 3), Cut(1, 3, 3)]
        >>> whole_block([cut_block(block, cut) for cut in cuts], cuts).G
        tensor([[0., 1., 2., 3., 4., 5.]])
    """
    first = parts[0]
    match first:
        case Factored(out_first=False):
            return replace(first, A=torch.cat([part.tensors()["A"] for part in parts], 1))
        case Factored() | Convolved():
            return replace(first, D=torch.cat([part.tensors()["D"] for part in parts], 1))
        case Sparse():  # an entry is zero in all parts but one
            found = [part.tensors() for part in parts]
            places = [
                torch.where(t["D"].any(-1), t["index"] + cut.start, 0) for t, cut in zip(found, cuts, strict=True)
            ]
            index = torch.stack(places).sum(0).to(first.index.dtype)
            return replace(first, index=index, D=torch.stack([t["D"] for t in found]).sum(0), V=cuts[0].size)
    return Dense(torch.cat([part.tensors()["G"] for part in parts], 1))
