"""What remembering a task would store, layer by layer, found out on a few of its examples: nothing is stored."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.gather import check_dependent, check_model, gather
from ogd.memory.inputs.examples import Chunk
from ogd.memory.inputs.outputs import Chosen


@dataclass(frozen=True)
class Entry:
    """How the gradients of some parameters are stored, or why they are not; with keep="examples", a part of them."""

    names: tuple[str, ...]
    stored: str
    nbytes: int  # per direction, or per example


@dataclass(frozen=True)
class Explanation:
    """How each parameter is stored; printed, it is a table."""

    entries: tuple[Entry, ...]
    refused: str = ""  # why the model cannot be remembered at all
    what: str = "parameters"
    unit: str = "direction"

    @property
    def nbytes(self) -> int:
        """Bytes per direction, or per example."""
        return sum(entry.nbytes for entry in self.entries)

    def __str__(self) -> str:
        if self.refused:
            return f"refused: {self.refused}"
        lines = [(" + ".join(entry.names), f"{entry.nbytes:,}", entry.stored) for entry in self.entries]
        lines = [(self.what, "bytes", "stored"), *lines, (f"together, per {self.unit}", f"{self.nbytes:,}", "")]
        first, second = (max(len(line[i]) for line in lines) for i in (0, 1))
        return "\n".join(f"{a:<{first}}  {b:>{second}}  {c}".rstrip() for a, b, c in lines)


def explained(chosen: Chosen, params: Mapping[str, Tensor], examples: Chunk, dtype: torch.dtype | None) -> Explanation:
    """How the gradients of these examples would be stored."""
    try:
        check_model(chosen.model, params)
        pieces, n = gather(chosen, params, [examples], 0, None, dtype)
        check_dependent(bool(pieces))
    except ValueError as error:
        return Explanation((), str(error))
    entries = [Entry(piece.names, _how(piece, chosen), piece.block.nbytes // n) for piece in pieces]
    covered = {name for piece in pieces for name in piece.names}
    for name, p in chosen.model.named_parameters():
        if name not in covered:
            why = "the outputs do not depend on it" if name in params else "frozen, or left out by params="
            entries.append(Entry((name,), f"not protected: {why if p.requires_grad else 'frozen'}", 0))
    return Explanation(tuple(entries))


def _how(piece: Piece, chosen: Chosen) -> str:
    reason = next((chosen.slow[name] for name in piece.names if name in chosen.slow), "")
    return f"dense, read example by example: {reason}" if reason else piece.block.describe()
