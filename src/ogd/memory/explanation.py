"""Explain what `remember` would store, from a few examples."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ogd.memory.blocks.pieces import Piece
from ogd.memory.data.batches import Chunk, TensorSlot
from ogd.memory.data.items import nbytes_of
from ogd.memory.examples.kept_examples import Examples, Group
from ogd.memory.examples.kept_items import Items
from ogd.memory.examples.packing import Packed
from ogd.memory.examples.top_probabilities import Outputs, TopProbabilities
from ogd.memory.gradients.gather import check_dependent, gather
from ogd.memory.gradients.outputs import ChosenOutputs
from ogd.memory.model.supported import check_model
from ogd.tensor_files import dtype_name


@dataclass(frozen=True)
class Entry:
    """How the gradients of some parameters, or a part of an example, are stored, or why they are not stored."""

    names: tuple[str, ...]
    stored: str
    nbytes: int  # per direction, or per example


@dataclass(frozen=True)
class Explanation:
    """How each parameter, or each part of an example, is stored; printed, it is a table.

    Args:
        entries: one entry for each row of the table.
        refused: why the model cannot be remembered at all; "" if it can.
        what: the heading of the first column.
        unit: the thing that the bytes are counted for.
    """

    entries: tuple[Entry, ...]
    refused: str = ""
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


def explain_gradients(
    chosen: ChosenOutputs, params: Mapping[str, Tensor], examples: Chunk, dtype: torch.dtype | None
) -> Explanation:
    """Explain how the gradients of these examples would be stored."""
    try:
        check_model(chosen.model, params)
        pieces, n = gather(chosen, params, [examples], 0, None, dtype)
        check_dependent(bool(pieces))
    except ValueError as error:
        return Explanation((), str(error))
    entries = [Entry(piece.names, _how_gradients(piece, chosen), piece.block.nbytes // n) for piece in pieces]
    covered = {name for piece in pieces for name in piece.names}
    for name, p in chosen.model.named_parameters():
        if name not in covered:
            why = "the outputs do not depend on it" if name in params else "frozen, or left out by params="
            entries.append(Entry((name,), f"not protected: {why if p.requires_grad else 'frozen'}", 0))
    return Explanation(tuple(entries))


def _how_gradients(piece: Piece, chosen: ChosenOutputs) -> str:
    reason = next((chosen.slow[name] for name in piece.names if name in chosen.slow), "")
    return f"dense, read example by example: {reason}" if reason else piece.block.describe()


def explain_examples(examples: Examples) -> Explanation:
    """Explain how many bytes an example takes, and how each part is kept."""
    found: dict[str, tuple[int, str]] = {}
    for group in examples.groups:
        for name, nbytes, how in _parts(group):
            found[name] = (found.get(name, (0, ""))[0] + nbytes, how)
    entries = [Entry((name,), how, -(-nbytes // len(examples))) for name, (nbytes, how) in found.items()]
    return Explanation(tuple(entries), what="kept", unit="example")


def explain_items(items: Items) -> Explanation:
    """Explain how many bytes an item takes on average, and how each part is kept."""
    found: dict[str, tuple[int, str]] = {}
    for item in items.items:
        leaves, _ = pytree.tree_flatten_with_path(item.structure)
        places = [(f"item{pytree.keystr(path)}", leaf) for path, leaf in leaves]
        parts = [
            (name, item.tensors[leaf.number].nbytes, _how_packed(item.tensors[leaf.number]))
            if isinstance(leaf, TensorSlot)
            else (name, nbytes_of(leaf), type(leaf).__name__)
            for name, leaf in places
        ]
        if item.z is not None:
            parts.append(("outputs", item.z.nbytes, dtype_name(item.z.dtype)))
        for name, nbytes, how in parts:
            found[name] = (found.get(name, (0, ""))[0] + nbytes, how)
    entries = [Entry((name,), how, -(-nbytes // len(items))) for name, (nbytes, how) in found.items()]
    return Explanation(tuple(entries), what="kept", unit="item")


def _parts(group: Group) -> list[tuple[str, int, str]]:
    leaves, _ = pytree.tree_flatten_with_path(group.structure)
    names = [f"input{pytree.keystr(path)}" for path, leaf in leaves if isinstance(leaf, TensorSlot)]
    names += ["label"] * (group.y is not None)
    parts = [(name, leaf.data.nbytes, _how_packed(leaf)) for name, leaf in zip(names, group.packed, strict=True)]
    return [*parts, ("output", group.z.nbytes, _how_outputs(group.z))]


def _how_outputs(z: Outputs) -> str:
    if not isinstance(z, TopProbabilities):
        return dtype_name(z.dtype)
    return f"float16, the {z.places.shape[-1]} largest log-probabilities of {z.C:,} and the sum of the others"


def _how_packed(leaf: Packed) -> str:
    if leaf.palette is not None:
        return f"uint8, the places of {dtype_name(leaf.dtype)} values in a table of {leaf.palette.numel()}"
    small, whole = dtype_name(leaf.data.dtype), dtype_name(leaf.dtype)
    return small if small == whole else f"{small}, in place of {whole}"
