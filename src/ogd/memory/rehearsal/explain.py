"""What keeping such examples would take: the tensors of the inputs, the labels, the outputs."""

from torch.utils import _pytree as pytree

from ogd.memory.gradients.explain import Entry, Explanation
from ogd.memory.rehearsal.examples import Examples, Lot, Place
from ogd.memory.rehearsal.packed import Packed

TRIED = 64  # examples, enough to tell how they can be packed


def explained(examples: Examples) -> Explanation:
    """Bytes per example, and how each part is kept."""
    found: dict[str, tuple[int, str]] = {}
    for lot in examples.lots:
        for name, nbytes, how in _parts(lot):
            found[name] = (found.get(name, (0, ""))[0] + nbytes, how)
    entries = [Entry((name,), how, -(-nbytes // len(examples))) for name, (nbytes, how) in found.items()]
    return Explanation(tuple(entries), what="kept", unit="example")


def _parts(lot: Lot) -> list[tuple[str, int, str]]:
    leaves, _ = pytree.tree_flatten_with_path(lot.structure)
    names = [f"input{pytree.keystr(path)}" for path, leaf in leaves if isinstance(leaf, Place)]
    names += ["label"] * (lot.y is not None)
    parts = [(name, leaf.data.nbytes, _how(leaf)) for name, leaf in zip(names, lot.packed, strict=True)]
    return [*parts, ("output", lot.z.nbytes, _named(lot.z.dtype))]


def _how(leaf: Packed) -> str:
    if leaf.palette is not None:
        return f"uint8, the places of {_named(leaf.dtype)} values in a table of {leaf.palette.numel()}"
    small, whole = _named(leaf.data.dtype), _named(leaf.dtype)
    return small if small == whole else f"{small}, in place of {whole}"


def _named(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
