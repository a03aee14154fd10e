"""One layer's columns of G, the matrix whose rows are the stored gradients.

A block computes three products with its columns of G (n rows) without forming them:

    gram(other)      G G'ᵀ     the overlaps of stored gradients                (..., n, m), float64
    overlap(update)  G u       the change of each stored output by an update   (..., n)
    combine(c)       Gᵀ c      the combination of rows with coefficients c     one tensor per parameter

`update` holds one tensor for each parameter of the block: weight and perhaps bias for a layer, or any one
parameter for `Dense`. The leading axes `...` are for stacks of runs; a single model has none.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ogd.memory.blocks.gram import gram_by_parts, squares_by_columns
from ogd.tensor_files import is_finite

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # in which gradients are stored


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision for updates and rows of a parameter, which is float32 for half-precision types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, eq=False)
class Block(ABC):
    """Rows of G in the columns of a layer's parameters.

    Each kind of block is a frozen dataclass of tensors and options in its own file. It names the axis of each tensor
    along which the rows lie, and implements `overlap`, `combine` and `columns`. The other methods use these three;
    a kind overrides those that it can compute faster.
    """

    kind: ClassVar[str]  # the name of the kind in saved files
    row_axes: ClassVar[Mapping[str, int]]  # the axis of each tensor along which the rows lie

    @property
    def entries(self) -> int:
        """The number of entries along the row axis for each row of G."""
        return 1

    @property
    def n(self) -> int:
        """The number of rows."""
        name, axis = next(iter(self.row_axes.items()))
        size: int = getattr(self, name).shape[axis]
        return size // self.entries

    @property
    @abstractmethod
    def lead(self) -> torch.Size:
        """The leading axes, which index the runs of a stack."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns of the first parameter, the weight."""

    @property
    def grain(self) -> int:
        """The number of which the bounds of `columns` must be multiples."""
        return 1

    @property
    def products(self) -> int:
        """The number of products that are added up to form one entry of G."""
        return 1

    @abstractmethod
    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        """Return G u, (..., n)."""

    @abstractmethod
    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        """Return Gᵀ c, one tensor per parameter."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> Tensor:
        """Return columns start:stop of the weight's G, (..., n, stop − start), float64."""

    def split(self) -> tuple["Block", ...]:
        """Return the same gradients as one block per parameter."""
        return (self,)

    def gram(self, other: "Block") -> Tensor:
        """Return G G'ᵀ, (..., n, m), float64."""
        return gram_by_parts(self, other)

    def gram_cost(self, n: int, m: int) -> float:
        """Estimate the number of multiplications for the Gram matrix of n rows with m rows of this kind."""
        return self.columns_cost(n, m) / 8

    def columns_cost(self, n: int, m: int) -> float:
        """Estimate the number of multiplications if the Gram matrix is computed by columns."""
        return self.width * (n * m / 2 + (n + m) * self.products)

    def squares(self) -> Tensor:
        """Return |g_i|² of every row, (..., n), float64."""
        return torch.stack([squares_by_columns(part) for part in self.split()]).sum(0)

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start:stop of G, (..., stop − start, p), float64."""
        return torch.cat([part.columns(0, part.width) for part in self[start:stop].split()], -1)

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += combine(c)` in place, in the shape of each parameter."""
        for p, u in zip(params, self.combine(c), strict=True):
            p.add_(u.reshape(p.shape))

    def optimize_layout(self) -> Self:
        """Return a copy in the memory layout that is fastest for `overlap` and `combine`."""
        return self

    @property
    def layout_nbytes(self) -> int:
        """The bytes of the copy that `optimize_layout` makes."""
        return 0

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.row_axes}

    def options(self) -> dict[str, Any]:
        """Return the fields that are not tensors."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.row_axes}

    @property
    def form(self) -> Hashable:
        """The kind, options and shapes, which blocks of one stack must have in common."""
        return type(self), *self.options().values(), *(t.shape for t in self.tensors().values())

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors().values())

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the stored numbers."""
        return next(t.dtype for t in self.tensors().values() if t.is_floating_point())

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """Move the tensors, and convert the floating-point ones."""
        moved = {name: t.to(device, dtype if t.is_floating_point() else t.dtype) for name, t in self.tensors().items()}
        return replace(self, **moved)

    def fits(self, other: "Block") -> bool:
        """Return whether the rows of the other block can be concatenated to these."""
        if type(self) is not type(other) or self.options() != other.options():
            return False
        pairs = zip(self.row_axes.values(), self.tensors().values(), other.tensors().values(), strict=True)
        return all(_alike(one, two, axis) for axis, one, two in pairs)

    def concatenate(self, *others: "Block") -> Self:
        """Return one block with these rows and those of other blocks that fit."""
        every = [self.tensors(), *(block.tensors() for block in others)]
        return replace(
            self, **{name: torch.cat([t[name] for t in every], axis) for name, axis in self.row_axes.items()}
        )

    def __getitem__(self, rows: slice) -> Self:
        start, count = rows.start * self.entries, (rows.stop - rows.start) * self.entries
        parts = {name: t.narrow(self.row_axes[name], start, count) for name, t in self.tensors().items()}
        return replace(self, **parts)

    def pad(self, old: Sequence[torch.Size], new: Sequence[torch.Size]) -> "Block | None":
        """Pad with zeros for parameters whose outputs have grown from the old sizes to the new ones.

        Return None if this kind of block cannot hold gradients of the new sizes.
        """
        return None

    def stackable(self) -> tuple["Block", ...]:
        """Return a form that can have leading axes, as one block or as one block per parameter."""
        return (self,)

    def to_state(self) -> dict[str, Any]:
        """Return the kind and the options as JSON values."""
        options = {name: list(value) if isinstance(value, tuple) else value for name, value in self.options().items()}
        return {"kind": self.kind, **options}

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[torch.Size]) -> Self:
        """Make a block for parameters of these sizes from a saved state; raise a ValueError if it does not fit."""

    @abstractmethod
    def describe(self) -> str:
        """Describe in words how a row is stored, for `explain`."""


def _alike(one: Tensor, two: Tensor, axis: int) -> bool:
    """Return whether two tensors differ at most in their size along an axis."""
    if (one.ndim, one.dtype, one.device) != (two.ndim, two.dtype, two.device):
        return False
    axis %= one.ndim
    return one.shape[:axis] == two.shape[:axis] and one.shape[axis + 1 :] == two.shape[axis + 1 :]


def check_numbers(tensor: Tensor, shape: Sequence[int], name: str) -> None:
    """Raise a ValueError unless a tensor from a saved state has the given shape and finite numbers."""
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(shape)}")
    if tensor.dtype not in DTYPES or not is_finite(tensor):
        raise ValueError(f"{name} holds values that are not finite floating-point numbers")
