"""Tensors kept in fewer bytes, and given back in their own dtype.

whole numbers           the smallest of uint8, int16, int32 that holds them
at most 256 values      a palette and a code of one byte per number (images, normalised or not): nothing is lost
other numbers           float16, where its rounding is less than a thousandth of the spread of each feature

Numbers are rounded once, by `pack`. `join` never changes any of them, down to the sign of zero: parts that have no
common form of few bytes stay apart.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

COLOURS = 256
MAX_ROUNDING = 1e-3  # of a feature's standard deviation
MAX_GAP = 1 / 50  # of the range of all values: the distance between two neighbours
SAMPLE = 4096  # numbers that mostly tell whether there are too many values for a palette
_INTEGERS = (torch.uint8, torch.int16, torch.int32)
_SHRINKABLE = (torch.int64, torch.int32, torch.int16)  # may be kept in one of these
_FLOATS = {torch.float32: torch.int32, torch.float64: torch.int64}  # may be rounded; and whole numbers of that size


@dataclass(frozen=True, eq=False)
class Packed:
    """Examples of one tensor, first axis first. `palette[code]` are the values, or `palette[channel, code]`."""

    data: Tensor
    dtype: torch.dtype
    palette: Tensor | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.palette is None else self.palette.nbytes)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Some examples as they were."""
        data = self.data[rows] if isinstance(rows, slice) else self.data.index_select(0, rows)
        if self.palette is None:
            return data.to(self.dtype)
        return _values(self.palette, data)

    def select(self, rows: Tensor) -> "Packed":
        return Packed(self.data[rows], self.dtype, self.palette)

    def to(self, device: torch.device) -> "Packed":
        return Packed(self.data.to(device), self.dtype, None if self.palette is None else self.palette.to(device))


def pack(t: Tensor) -> Packed:
    """A tensor in the smallest form that loses nothing, or next to nothing.

    Examples:
        >>> image = torch.randint(256, (10, 1, 8, 8)) / 255
        >>> small = pack(image)
        >>> small.data.dtype, torch.equal(small[:], image)
        (torch.uint8, True)
        >>> pack(torch.tensor([[1, 5_000]])).data.dtype
        torch.int16
    """
    t = t.detach()
    if not t.is_floating_point():
        return Packed(_pack_integers(t), t.dtype)
    if t.dtype not in _FLOATS or not t.numel():
        return Packed(t.clone(), t.dtype)
    if (coded := _pack_with_palette(t)) is not None:
        return coded
    half = t.half()
    if bool(half.isfinite().all()) and _half_is_precise(t, half):
        return Packed(half, t.dtype)
    return Packed(t.clone(), t.dtype)


def join(a: Packed, b: Packed) -> Packed | None:
    """The examples of a and then b, each number as it was; None where they had better stay apart.

    Examples:
        >>> few, more, half = pack(torch.tensor([1, 2])), pack(torch.tensor([3])), pack(torch.randn(9, 2))
        >>> join(few, more)[:], join(half, pack(torch.tensor([[0.1, 1e6]])))
        (tensor([1, 2, 3]), None)
    """
    if a.palette is not None or b.palette is not None:
        return _join_palettes(a, b)
    if a.data.dtype != b.data.dtype:
        return None
    whole = Packed(torch.cat([a.data, b.data]), a.dtype)
    coded = _pack_with_palette(whole[:]) if a.dtype in _FLOATS else None
    return whole if coded is None or coded.nbytes > whole.nbytes else coded


def round_to_values(t: Tensor, like: Tensor) -> Tensor:
    """t with each number replaced by the nearest in `like`, if those are at most 256, close together; else t itself.

    So the mean of some images takes no more bytes than one of them, and no number moves by more than a hundredth of
    their range.

    Examples:
        >>> image = torch.randint(256, (10, 64)) / 255
        >>> pack(round_to_values(image[:8] * 0.3 + image[2:] * 0.7, image)).data.dtype
        torch.uint8
    """
    palette = _palette(like) if t.dtype in _FLOATS else None
    if palette is None or bool((palette.diff().amax(-1) > MAX_GAP * (palette[..., -1] - palette[..., 0])).any()):
        return t
    middle = (palette[..., 1:] + palette[..., :-1]) / 2
    return _values(palette, _codes(middle, t))


def _pack_integers(t: Tensor) -> Tensor:
    if t.dtype not in _SHRINKABLE or not t.numel():
        return t.clone()
    low, high = int(t.min()), int(t.max())
    for dtype in _INTEGERS:
        if dtype.itemsize < t.dtype.itemsize and torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return t.to(dtype)
    return t.clone()


def _pack_with_palette(t: Tensor) -> Packed | None:
    """t with a palette; None if it has too many values, or so few numbers that this would take more bytes."""
    palette = _palette(t)
    if palette is None or palette.nbytes + t.numel() >= t.nbytes:
        return None
    return Packed(_codes(palette, t), t.dtype, palette)


def _join_palettes(a: Packed, b: Packed) -> Packed | None:
    """Both parts with one palette, of the values of both; None if these are too many."""
    by_channel = any(part.palette is not None and part.palette.ndim == 2 for part in (a, b))
    known = [palette for part in (a, b) if (palette := _values_of(part, by_channel)) is not None]
    whole = _unique_values(torch.cat(known, -1)) if len(known) == 2 else None
    if whole is None:
        return None
    codes = [
        _codes(whole, part[:]) if part.palette is None else _values(_positions(whole, palette), part.data)
        for part, palette in zip((a, b), known, strict=True)
    ]
    return Packed(torch.cat(codes), a.dtype, whole)


def _values_of(part: Packed, by_channel: bool) -> Tensor | None:
    """The palette of a part, or one for it; each channel's if that is asked for. None if it has too many values."""
    if part.palette is None:
        return _unique_values(_channels(part[:]) if by_channel else part[:].flatten())
    return part.palette.expand(part.data.shape[1], -1) if by_channel else part.palette


def _palette(t: Tensor) -> Tensor | None:
    """The values of all numbers, or of each channel's (the second axis of images); None if there are too many."""
    if t.numel() <= COLOURS:
        return None
    palette = _unique_values(t.flatten())
    if palette is None and t.ndim >= 3 and t.numel() > COLOURS * t.shape[1]:
        palette = _unique_values(_channels(t))
    return palette


def _unique_values(values: Tensor) -> Tensor | None:
    """The different values in each row, ascending; shorter rows repeat their last. None if they are too many."""
    if values.ndim == 1:
        keys = _keys(values)
        if len(keys) > SAMPLE and len(keys[:: len(keys) // SAMPLE].unique()) > COLOURS:
            return None
        few = keys.unique()
        if len(few) > COLOURS or not bool(values.isfinite().all()):
            return None
        return _from_keys(few, values.dtype)
    rows = [_unique_values(row) for row in values]
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        return None
    most = max(map(len, found))
    return torch.stack([torch.cat([row, row[-1:].expand(most - len(row))]) for row in found])


def _codes(palette: Tensor, t: Tensor) -> Tensor:
    """The place of each number of t in a palette."""
    if palette.ndim == 1:
        return _positions(palette, t)
    by_channel = t.movedim(1, 0)
    return _positions(palette, by_channel.flatten(1)).view(by_channel.shape).movedim(0, 1).contiguous()


def _positions(palette: Tensor, t: Tensor) -> Tensor:
    return torch.searchsorted(_keys(palette), _keys(t).contiguous()).to(torch.uint8)


def _values(palette: Tensor, codes: Tensor) -> Tensor:
    if palette.ndim == 1:
        return palette.index_select(0, codes.flatten().long()).view(codes.shape)
    channel = torch.arange(len(palette), device=codes.device).view(1, -1, *[1] * (codes.ndim - 2))
    return palette[channel, codes.int()]


def _channels(t: Tensor) -> Tensor:
    """The numbers of each channel, (C, n)."""
    return t.movedim(1, 0).flatten(1)


def _keys(t: Tensor) -> Tensor:
    """Whole numbers in the order of t, another for other bits: −0.0 comes before 0.0, which equals it."""
    return _flip_negatives(t.view(_FLOATS[t.dtype]))


def _from_keys(keys: Tensor, dtype: torch.dtype) -> Tensor:
    return _flip_negatives(keys).view(dtype)


def _flip_negatives(bits: Tensor) -> Tensor:
    """Negative numbers in reverse order: as bits, those of floating point ascend with their magnitude."""
    return bits ^ ((bits >> (8 * bits.itemsize - 1)) & torch.iinfo(bits.dtype).max)


def _half_is_precise(t: Tensor, half: Tensor) -> bool:
    """Whether rounding is small beside the spread of each feature; without one, beside the mean of the others."""
    error = (half.to(t.dtype) - t).abs().amax(0)
    spread = t.std(0) if len(t) > 1 else torch.zeros_like(error)
    spread = torch.where(spread > 0, spread, spread[spread > 0].mean().nan_to_num(0))
    return bool((error <= MAX_ROUNDING * spread).all())
