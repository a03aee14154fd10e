"""One layer's share of G, the matrix whose rows are the stored gradients.

A block answers three questions about its columns of G (n rows), without forming them:

    gram(other)      G G'ᵀ     how stored gradients overlap with one another   (..., n, m), float64
    overlap(update)  G u       how much an update moves each stored output     (..., n)
    combine(c)       Gᵀ c      the update that a combination of rows makes     one tensor per parameter

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

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # of stored numbers


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which updates of a parameter are projected and rows are formed: half types in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, eq=False)
class Block(ABC):
    """Rows of G in the columns of a layer's parameters.

    A kind of block is a frozen dataclass of tensors and options, in a file of its own. It names the axis of each
    tensor that holds the rows, and computes `overlap`, `combine` and `columns`; the rest follows from these, and a
    kind overrides what it can do faster.
    """

    kind: ClassVar[str]  # its name in files
    row_axes: ClassVar[Mapping[str, int]]  # the axis of each tensor along which rows follow one another

    @property
    def entries(self) -> int:
        """How many entries along its row axis a tensor has for each row of G."""
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
        """The axes of the stack that come before the rows."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns of the first parameter, the weight."""

    @property
    def grain(self) -> int:
        """`columns` begin and end at multiples of this."""
        return 1

    @property
    def products(self) -> int:
        """The outer products, or the like, of which a row is the sum: what it costs to form a number of G."""
        return 1

    @abstractmethod
    def overlap(self, update: Sequence[Tensor]) -> Tensor:
        """G u, (..., n)."""

    @abstractmethod
    def combine(self, c: Tensor) -> tuple[Tensor, ...]:
        """Gᵀ c, a tensor for each parameter."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> Tensor:
        """Columns start:stop of the weight's G, (..., n, stop − start), float64."""

    def split(self) -> tuple["Block", ...]:
        """The same gradients as one block per parameter."""
        return (self,)

    def gram(self, other: "Block") -> Tensor:
        """G G'ᵀ, (..., n, m), float64."""
        return gram_by_parts(self, other)

    def gram_cost(self, n: int, m: int) -> float:
        """Estimate the multiplications of a gram of n rows with m rows like these."""
        return self.columns_cost(n, m) / 8

    def columns_cost(self, n: int, m: int) -> float:
        """Estimate the multiplications of a gram by columns."""
        return self.width * (n * m / 2 + (n + m) * self.products)

    def squares(self) -> Tensor:
        """|g_i|² of every row, (..., n), float64."""
        return torch.stack([squares_by_columns(part) for part in self.split()]).sum(0)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start:stop of G themselves, (..., stop − start, p), float64."""
        return torch.cat([part.columns(0, part.width) for part in self[start:stop].split()], -1)

    def add_combination(self, params: Sequence[Tensor], c: Tensor) -> None:
        """Do `params += combine(c)` in place, whatever the shape in which the combination lies."""
        for p, u in zip(params, self.combine(c), strict=True):
            p.add_(u.reshape(p.shape))

    def optimize_layout(self) -> Self:
        """Copy what `overlap` and `combine` read into the layout that is fastest for them."""
        return self

    @property
    def layout_nbytes(self) -> int:
        """Bytes of the copy that `laid_out` makes."""
        return 0

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.row_axes}

    def options(self) -> dict[str, Any]:
        """All that is not a tensor."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.row_axes}

    @property
    def form(self) -> Hashable:
        """What blocks must have in common to stand side by side in a stack."""
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
        """Move the tensors, and convert those of floating point."""
        moved = {name: t.to(device, dtype if t.is_floating_point() else t.dtype) for name, t in self.tensors().items()}
        return replace(self, **moved)

    def fits(self, other: "Block") -> bool:
        """Whether the other's rows can follow these in one block."""
        if type(self) is not type(other) or self.options() != other.options():
            return False
        pairs = zip(self.row_axes.values(), self.tensors().values(), other.tensors().values(), strict=True)
        return all(_alike(one, two, axis) for axis, one, two in pairs)

    def concatenate(self, *others: "Block") -> Self:
        """Join these rows and those of others that fit in one block."""
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

        Return None where this form cannot hold the parameters of the new sizes.
        """
        return None

    def stackable(self) -> tuple["Block", ...]:
        """Return a form that may have leading axes: one block of all parameters, or one for each."""
        return (self,)

    def to_state(self) -> dict[str, Any]:
        """Return all but the tensors as JSON values."""
        return {"kind": self.kind, **self.options()}

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: Sequence[torch.Size]) -> Self:
        """Make a block of parameters of these sizes from what a file holds; raise a ValueError unless it all fits."""

    @abstractmethod
    def describe(self) -> str:
        """Say in words how a row is stored, for `explain`."""


def _alike(one: Tensor, two: Tensor, axis: int) -> bool:
    """Whether two tensors differ at most in their size along an axis."""
    if (one.ndim, one.dtype, one.device) != (two.ndim, two.dtype, two.device):
        return False
    axis %= one.ndim
    return one.shape[:axis] == two.shape[:axis] and one.shape[axis + 1 :] == two.shape[axis + 1 :]


def check_numbers(tensor: Tensor, shape: Sequence[int], name: str) -> None:
    """Raise a ValueError unless a tensor read from a file holds finite numbers and has the shape that it must have."""
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(shape)}")
    if tensor.dtype not in DTYPES or not is_finite(tensor):
        raise ValueError(f"{name} holds values that are not finite floating-point numbers")
