"""Pack tensors into fewer bytes, and unpack them in their own dtype.

whole numbers           the smallest of uint8, int16, int32 that holds them
at most 256 values      a palette and a code of one byte per number (images, normalised or not), without loss
other numbers           float16, if its rounding is less than a thousandth of the spread of each feature

Numbers are rounded once, by `pack`. `join` changes none of them, not even the sign of zero: tensors without a common
packing are not joined.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

COLOURS = 256
MAX_ROUNDING = 1e-3  # as a share of a feature's standard deviation
MAX_GAP = 1 / 50  # between neighbouring values, as a share of the range of all values
SAMPLE = 4096  # numbers that mostly show whether there are too many values for a palette
_INTEGERS = (torch.uint8, torch.int16, torch.int32)
_SHRINKABLE = (torch.int64, torch.int32, torch.int16)  # dtypes that may be packed into _INTEGERS
_FLOATS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}  # dtypes that may be rounded, with the integers of their size


@dataclass(frozen=True, eq=False)
class Packed:
    """A packed tensor, one row per example. Its values are `data`, `palette[data]` or `palette[channel, data]`."""

    data: Tensor
    dtype: torch.dtype
    palette: Tensor | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.palette is None else self.palette.nbytes)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return some examples in their own dtype."""
        data = self.data[rows] if isinstance(rows, slice) else self.data.index_select(0, rows)
        if self.palette is None:
            return data.to(self.dtype)
        return _values(self.palette, data)

    def select(self, rows: Tensor) -> "Packed":
        return Packed(self.data[rows], self.dtype, self.palette)

    def to(self, device: torch.device) -> "Packed":
        return Packed(self.data.to(device), self.dtype, None if self.palette is None else self.palette.to(device))


def pack(t: Tensor) -> Packed:
    """Return a tensor in the smallest packing that loses nothing, or next to nothing.

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
    """Return the examples of a and then b, each number unchanged; None if they have no common packing.

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
    """Replace each number of t by the nearest value of `like`, if `like` has at most 256 values, close together.

    So the mean of several images takes no more bytes than one image, and no number changes by more than a hundredth
    of the range. Otherwise return t itself.

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
    """Return t packed with a palette; None if t has too many values, or if that would take more bytes."""
    palette = _palette(t)
    if palette is None or palette.nbytes + t.numel() >= t.nbytes:
        return None
    return Packed(_codes(palette, t), t.dtype, palette)


def _join_palettes(a: Packed, b: Packed) -> Packed | None:
    """Return both parts packed with one palette; None if they have too many values."""
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
    """Return the palette of a part, or make one, per channel if asked; None if it has too many values."""
    if part.palette is None:
        return _unique_values(_channels(part[:]) if by_channel else part[:].flatten())
    return part.palette.expand(part.data.shape[1], -1) if by_channel else part.palette


def _palette(t: Tensor) -> Tensor | None:
    """Return the values of t, or of each channel (the second axis of images); None if there are too many."""
    if t.numel() <= COLOURS:
        return None
    palette = _unique_values(t.flatten())
    if palette is None and t.ndim >= 3 and t.numel() > COLOURS * t.shape[1]:
        palette = _unique_values(_channels(t))
    return palette


def _unique_values(values: Tensor) -> Tensor | None:
    """Return the different values of each row, ascending, short rows padded with their last; None if too many."""
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
    """Return the position of each number of t in a palette."""
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
    """Return the numbers of each channel, (C, n)."""
    return t.movedim(1, 0).flatten(1)


def _keys(t: Tensor) -> Tensor:
    """Return integers in the order of t, different for different bits: −0.0 comes before 0.0."""
    return _flip_negatives(t.view(_FLOATS[t.dtype]))


def _from_keys(keys: Tensor, dtype: torch.dtype) -> Tensor:
    return _flip_negatives(keys).view(dtype)


def _flip_negatives(bits: Tensor) -> Tensor:
    """Reverse the order of negative numbers: the bits of a negative float ascend with its magnitude."""
    return bits ^ ((bits >> (8 * bits.itemsize - 1)) & torch.iinfo(bits.dtype).max)


def _half_is_precise(t: Tensor, half: Tensor) -> bool:
    """Return whether rounding is small against each feature's spread; if that is 0, against the mean spread."""
    error = (half.to(t.dtype) - t).abs().amax(0)
    spread = t.std(0) if len(t) > 1 else torch.zeros_like(error)
    spread = torch.where(spread > 0, spread, spread[spread > 0].mean().nan_to_num(0))
    return bool((error <= MAX_ROUNDING * spread).all())
