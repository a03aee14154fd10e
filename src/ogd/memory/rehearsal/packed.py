"""Tensors kept in fewer bytes, and given back in their own dtype.

whole numbers           the smallest of uint8, int16, int32 that holds them
at most 256 values      a palette and a code of one byte per number (images, normalised or not): nothing is lost
other numbers           float16, where its rounding is less than a thousandth of the spread of each feature
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

COLOURS = 256
LOST = 1e-3  # of a feature's standard deviation
CLOSE = 1 / 50  # of the range of all values: the distance between two neighbours
_WHOLE = (torch.uint8, torch.int16, torch.int32)
_SMALLER = (torch.int64, torch.int32, torch.int16)  # may be kept in one of these


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

    def only(self, rows: Tensor) -> "Packed":
        return Packed(self.data[rows], self.dtype, self.palette)

    def to(self, device: torch.device) -> "Packed":
        return Packed(self.data.to(device), self.dtype, None if self.palette is None else self.palette.to(device))


def packed(t: Tensor) -> Packed:
    """A tensor in the smallest form that loses nothing, or next to nothing.

    Examples:
        >>> image = torch.randint(256, (10, 1, 8, 8)) / 255
        >>> small = packed(image)
        >>> small.data.dtype, torch.equal(small[:], image)
        (torch.uint8, True)
        >>> packed(torch.tensor([[1, 5_000]])).data.dtype
        torch.int16
    """
    t = t.detach()
    if not t.is_floating_point():
        return Packed(_small(t), t.dtype)
    if t.dtype not in (torch.float32, torch.float64) or not t.numel():
        return Packed(t.clone(), t.dtype)
    palette = _palette(t)
    if palette is not None:
        return Packed(_codes(palette, t), t.dtype, palette)
    half = t.half()
    if bool(half.isfinite().all()) and _spread_stays(t, half):
        return Packed(half, t.dtype)
    return Packed(t.clone(), t.dtype)


def joined(parts: Sequence[Packed]) -> Packed:
    """The examples of all parts, one after the other."""
    palettes = [part.palette for part in parts if part.palette is not None]
    dtype = parts[0].dtype
    if not palettes and len({part.data.dtype for part in parts}) == 1:
        return Packed(torch.cat([part.data for part in parts]), dtype)
    if len(palettes) == len(parts) and len({palette.shape[:-1] for palette in palettes}) == 1:
        palette = _of_values(torch.cat(palettes, -1))
        if palette is not None:
            moved = [_recoded(part.data, old, palette) for part, old in zip(parts, palettes, strict=True)]
            return Packed(torch.cat(moved), dtype, palette)
    return packed(torch.cat([part[:] for part in parts]))


def rounded(t: Tensor, like: Tensor) -> Tensor:
    """t with each number replaced by the nearest in `like`, if those are at most 256, close together; else t itself.

    So the mean of some images takes no more bytes than one of them, and no number moves by more than a hundredth of
    their range.

    Examples:
        >>> image = torch.randint(256, (10, 64)) / 255
        >>> packed(rounded(image[:8] * 0.3 + image[2:] * 0.7, image)).data.dtype
        torch.uint8
    """
    palette = _palette(like) if t.dtype in (torch.float32, torch.float64) else None
    if palette is None or bool((palette.diff().amax(-1) > CLOSE * (palette[..., -1] - palette[..., 0])).any()):
        return t
    middle = (palette[..., 1:] + palette[..., :-1]) / 2
    return _values(palette, _codes(middle, t))


def _small(t: Tensor) -> Tensor:
    if t.dtype not in _SMALLER or not t.numel():
        return t.clone()
    low, high = int(t.min()), int(t.max())
    for dtype in _WHOLE:
        if dtype.itemsize < t.dtype.itemsize and torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return t.to(dtype)
    return t.clone()


def _palette(t: Tensor) -> Tensor | None:
    """The values of all numbers, or of each channel's (the second axis of images); None if there are too many."""
    if t.numel() <= COLOURS or not bool(t.isfinite().all()):  # a palette would be larger
        return None
    palette = _of_values(t.flatten())
    if palette is None and t.ndim >= 3 and t.numel() > COLOURS * t.shape[1]:
        palette = _of_values(t.movedim(1, 0).flatten(1))
    return palette


def _of_values(values: Tensor) -> Tensor | None:
    """The different values in each row, ascending; shorter rows repeat their last."""
    if values.ndim == 1:
        few = values.unique()
        return few if len(few) <= COLOURS else None
    rows = [_of_values(row) for row in values]
    if any(row is None for row in rows):
        return None
    found = [row for row in rows if row is not None]
    most = max(map(len, found))
    return torch.stack([torch.cat([row, row[-1:].expand(most - len(row))]) for row in found])


def _codes(palette: Tensor, t: Tensor) -> Tensor:
    if palette.ndim == 1:
        return torch.searchsorted(palette, t.contiguous()).to(torch.uint8)
    by_channel = t.movedim(1, 0)
    codes = torch.searchsorted(palette, by_channel.flatten(1).contiguous()).view(by_channel.shape)
    return codes.movedim(0, 1).to(torch.uint8).contiguous()


def _recoded(codes: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The codes of the same values in a palette that has all of the old one's."""
    return _values(torch.searchsorted(new, old).to(torch.uint8), codes)


def _values(palette: Tensor, codes: Tensor) -> Tensor:
    if palette.ndim == 1:
        return palette.index_select(0, codes.flatten().long()).view(codes.shape)
    channel = torch.arange(len(palette), device=codes.device).view(1, -1, *[1] * (codes.ndim - 2))
    return palette[channel, codes.int()]


def _spread_stays(t: Tensor, half: Tensor) -> bool:
    """Whether rounding is small beside the spread of each feature that has one."""
    if len(t) < 2:
        return False
    error, spread = (half.to(t.dtype) - t).abs().amax(0), t.std(0)
    return bool(((error <= LOST * spread) | (spread == 0)).all())
