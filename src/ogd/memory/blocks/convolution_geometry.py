"""The geometry of a convolution's gradient: its patches, the inputs that each output reads, and the Gram matrix.

    G_i = Σ_t patch_it ⊗ δ_it                                   the weight's gradient of example i
    K_ij = Σ_ts (patch_it · patch'_js) (δ_it · δ'_js)

A patch is the input x at the places t + o for the offsets o of the kernel. The product of two patches needs no copy of
them:

    patch_it · patch'_js = Σ_o x_i(t + o) · x'_j(s + o)

One matrix product over the channels gives x · x' for all pairs of places, for a kernel of any size. The sum over the
offsets then only adds these numbers.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from ogd.memory.blocks.gram import CHUNK, TRAFFIC, add_lower, columns_cost, mirror_lower

if TYPE_CHECKING:
    from ogd.memory.blocks.convolved import Convolved

SMALL = 64  # positions up to which an output counts as small
CHANNELS = 16  # the least number of input channels whose columns of G are formed at a time
PART = 2**21  # numbers of G that are formed at a time, few enough to stay in the cache


def patches(
    x: Tensor, kernel: Sequence[int], *, dilation: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """Return the patches that a convolution reads, images x (n, C, H, W) → (n, C · kernel, T)."""
    sizes = [tuple(size) for size in (kernel, dilation, padding, stride)]
    return functional.unfold(x, *sizes)


def weight_gradient(
    x: Tensor,
    d: Tensor,
    weight: torch.Size,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """Return Σ_i ∂⟨δ_i, x_i ∗ U⟩ / ∂U, (O, C, kernel).

    For a small output this is computed as a convolution of x with δ in which the examples are the channels, because
    it is three times as fast as PyTorch's own function. For a large output PyTorch's is faster.
    """
    if groups > 1 or d.shape[2] * d.shape[3] >= SMALL:
        G: Tensor = conv2d_weight(x, weight, d, stride, padding, dilation, groups)
        return G
    U = functional.conv2d(x.transpose(0, 1), d.transpose(0, 1), None, dilation, padding, stride)
    return U[..., : weight[2], : weight[3]].transpose(0, 1)


def slices_at(o: int, out: int, size: int, *, dilation: int, stride: int, padding: int) -> tuple[slice, int, slice]:
    """Return, along one axis, the outputs that read an input at the kernel's offset o, and those inputs.

    The inputs are `stride` apart, so they are returned as a phase and a slice of the inputs [phase::stride].

    Examples:
        >>> slices_at(0, 4, 4, dilation=1, stride=1, padding=1)  # output 0 reads the padding
        (slice(1, 4, None), 0, slice(0, 3, None))
    """
    shift = o * dilation - padding  # output t reads the input t · stride + shift
    first = max(-(shift // stride), 0)
    stop = max(min((size - 1 - shift) // stride, out - 1) + 1, first)
    skip, phase = divmod(shift, stride)
    return slice(first, stop), phase, slice(first + skip, stop + skip)


def convolution_gram(one: "Convolved", other: "Convolved") -> Tensor:
    """Return K of two blocks of one weight without groups, by the cheaper of two algorithms."""
    offsets = one.n * other.n * offsets_cost(one, other) // (2 if one is other else 1)
    return gram_by_offsets(one, other) if offsets < columns_cost(one, other) else gram_by_channels(one, other)


def offsets_cost(one: "Convolved", other: "Convolved") -> int:
    """Estimate the number of multiplications of `gram_by_offsets` for one pair of rows."""
    inputs, outputs, offsets = (
        one.S * other.S // (one.stride[0] * one.stride[1]),
        one.T * other.T,
        one.kernel[0] * one.kernel[1],
    )
    added = outputs * offsets * one.groups * TRAFFIC // 2
    return inputs * one.X.shape[1] + outputs * one.D.shape[1] + added


def gram_by_offsets(one: "Convolved", other: "Convolved") -> Tensor:
    """Return K from the products of all pairs of places, summed for each offset of the kernel."""
    most = max(one.S, one.T) * max(other.S, other.T)
    step = max(int((CHUNK / most) ** 0.5), 1)
    if one is other:
        step = min(step, max(-(-one.n // 8), 16))
    K = one.X.new_zeros(one.n, other.n, dtype=torch.float64)
    for i in range(0, one.n, step):
        rows = Places(one[i : min(i + step, one.n)])
        for j in range(i if one is other else 0, other.n, step):
            M = _places_gram(rows, rows if one is other and j == i else Places(other[j : min(j + step, other.n)]))
            K[i : i + step, j : j + step] = M
            if one is other and j > i:
                K[j : j + step, i : i + step] = M.mT
    return K


class Places:
    """A block in float64 with its places first, converted once for many products."""

    def __init__(self, block: "Convolved"):
        self.block, self.D = block, _places_first(block.D)
        self._X: dict[tuple[int, int], Tensor] = {}

    def phase(self, y: int, x: int) -> Tensor:
        """Return the inputs [y::stride, x::stride]."""
        if (y, x) not in self._X:
            self._X[y, x] = _places_first(self.block.X[:, :, y :: self.block.stride[0], x :: self.block.stride[1]])
        return self._X[y, x]


def _places_gram(one: Places, other: Places) -> Tensor:
    DD = _products(one.D, other.D)  # (h, w, n, h', w', m)
    AA = torch.zeros_like(DD)
    phases: dict[tuple[int, ...], list[tuple[tuple[slice, ...], tuple[slice, ...]]]] = {}
    for offset in itertools.product(*map(range, one.block.kernel)):
        outputs, phase, inputs = zip(*_axis_slices(one.block, offset), *_axis_slices(other.block, offset), strict=True)
        phases.setdefault(phase, []).append((outputs, inputs))
    for (y, x, v, u), slices in phases.items():  # an offset reads inputs of one phase only
        XX = _products(one.phase(y, x), other.phase(v, u))  # (H, W, n, H', W', m)
        for (h, w, h_, w_), (H, W, H_, W_) in slices:
            AA[h, w, :, h_, w_] += XX[H, W, :, H_, W_]
    return AA.mul_(DD).sum((0, 1, 3, 4))


def _axis_slices(block: "Convolved", offset: Sequence[int]) -> Iterator[tuple[slice, int, slice]]:
    """Yield `slices_at` of an offset of the kernel for each axis."""
    axes = zip(offset, block.D.shape[2:], block.X.shape[2:], block.dilation, block.stride, block.padding, strict=True)
    for o, out, size, dilation, stride, padding in axes:
        yield slices_at(o, out, size, dilation=dilation, stride=stride, padding=padding)


def _places_first(t: Tensor) -> Tensor:
    """Permute (n, C, H, W) → (H, W, n, C) in float64."""
    return t.permute(2, 3, 0, 1).to(torch.float64, memory_format=torch.contiguous_format)


def _products(one: Tensor, other: Tensor) -> Tensor:
    """Multiply over the channels: (H, W, n, C) and (H', W', m, C) → (H, W, n, H', W', m)."""
    return (one.flatten(0, 2) @ other.flatten(0, 2).mT).view(*one.shape[:3], *other.shape[:3])


def gram_by_channels(one: "Convolved", other: "Convolved") -> Tensor:
    """Return K = Σ R R'ᵀ, where R holds the columns of some output channels, or input channels for a small output."""
    K = one.X.new_zeros(one.n, other.n, dtype=torch.float64)
    by_outputs = min(one.T, other.T) > SMALL
    size = (one.D if by_outputs else one.X).shape[1]
    each = max(max(one.n, other.n) * one.width // max(size, 1), 1)
    step = max(2 * CHUNK // each if by_outputs else max(PART // each, min(CHANNELS, CHUNK // each)), 1)
    for start in range(0, size, step):
        some = slice(start, start + step)
        blocks = [one] if one is other else [one, other]
        R, *others = [block.output_columns(some) if by_outputs else block.input_columns(some) for block in blocks]
        if one is other:
            add_lower(K, R)
        else:
            K += R.double() @ others[0].double().mT
    return mirror_lower(K) if one is other else K
