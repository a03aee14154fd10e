"""Limit how much a memory stores, and shrink a memory to its budget.

The tasks get equal shares of the budget, as far as possible. Each task keeps a uniform draw of its examples.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor

from ogd.checks import is_whole

MAX_BUDGET = 2**63 - 1
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class BudgetExceeded(ValueError):
    """Raised if a task does not fit the memory's budget; nothing of the task is stored."""


@dataclass(frozen=True)
class Budget:
    """The largest number of directions or examples, or of bytes, that may be stored; None is no limit."""

    count: int | None = None
    nbytes: int | None = None

    @classmethod
    def parse(cls, budget: "int | str | Budget | None") -> "Budget":
        """Return the budget that a user has written as a number or as a text.

        Examples:
            >>> Budget.parse(2000), Budget.parse("64 MB")
            (Budget(count=2000, nbytes=None), Budget(count=None, nbytes=64000000))
        """
        if budget is None:
            return cls()
        if isinstance(budget, Budget):
            return budget
        if isinstance(budget, str):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?i?B)\s*", budget, re.IGNORECASE)
            if match:
                return cls(nbytes=_limited(budget, float(match[1]) * _UNITS[match[2].upper()]))
        elif is_whole(budget, 1):
            return cls(count=_limited(budget, int(budget)))
        raise ValueError(f'budget must be a whole number, bytes such as "64MB", or None, not {budget!r}')

    def allows(self, contents: "Contents") -> bool:
        """Return whether the contents of a memory are within the budget."""
        sizes = ((len(contents), self.count), (contents.total_nbytes, self.nbytes))
        return all(limit is None or size <= limit for size, limit in sizes)

    def check(self, contents: "Contents") -> None:
        """Raise unless the contents of a memory are within the budget."""
        sizes = ((len(contents), self.count, contents.unit), (contents.total_nbytes, self.nbytes, "bytes"))
        for size, limit, unit in sizes:
            if limit is not None and size > limit:
                raise BudgetExceeded(
                    f"the memory would hold {size:,} {unit}, its budget is {limit:,}: nothing was stored; raise "
                    "budget=, remember fewer examples (per_task=), or let old tasks shrink (shrink=True)"
                )


class Contents(Protocol):
    """The contents of a memory, as a budget needs them."""

    unit: ClassVar[str]  # the things that the length counts

    def __len__(self) -> int: ...

    @property
    def total_nbytes(self) -> int: ...

    @property
    def examples_of_tasks(self) -> Sequence[int]: ...

    def size_per_example(self, *, in_bytes: bool) -> Sequence[int]:
        """Return how much of the length, or how many bytes, an example of each task takes."""
        ...

    def with_examples(self, tasks: Sequence[Tensor]) -> Self:
        """Return the contents with only some examples of each task, by their ascending numbers."""
        ...


C = TypeVar("C", bound=Contents)


def shrink_to_budget(contents: C, budget: Budget, generator: Generator) -> C:
    """Return the contents, with fewer examples of each task if they exceed the budget."""
    if budget.allows(contents):
        return contents
    counts = contents.examples_of_tasks
    limit = budget.count if budget.nbytes is None else budget.nbytes
    assert limit is not None
    sizes = contents.size_per_example(in_bytes=budget.nbytes is not None)
    order = [torch.randperm(n, generator=generator) for n in counts]
    goal = limit
    while True:
        shares = equal_shares(counts, goal, sizes)
        if not all(shares):
            unit = contents.unit if budget.nbytes is None else "bytes"
            each, more = "an example", ""
            if len(counts) > 1:
                each, more = f"an example of each of {len(counts)} tasks", ", or forget a task first: memory.forget(0)"
            raise BudgetExceeded(
                f"the budget of {limit:,} {unit} is too small for {each}: nothing was stored; raise budget={more}"
            )
        smaller = contents.with_examples([o[:share].sort().values for o, share in zip(order, shares, strict=True)])
        if budget.allows(smaller):
            return smaller
        goal = min(goal - 1, goal * limit // smaller.total_nbytes)  # examples of one task may differ in bytes


def equal_shares(counts: Sequence[int], total: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Divide a total among groups as equally as possible; what a small group cannot use goes to the others.

    If an example of group i takes `sizes[i]`, group i gives min(counts[i], max(⌊level / sizes[i]⌋, 1)) examples for
    the largest level at which Σ share · size ≤ total; the first groups give one more each, as far as it fits. If not
    even one of each group fits, some shares are 0.

    Examples:
        >>> equal_shares([100, 3, 100], 50)
        [24, 3, 23]
        >>> equal_shares([10, 10], 30, sizes=[4, 2])  # an example of the first group takes 4 of the 30
        [4, 7]
        >>> equal_shares([10, 10], 7, sizes=[2, 5])
        [1, 1]
    """
    sizes = [1] * len(counts) if sizes is None else sizes
    groups = list(zip(counts, sizes, strict=True))
    least = int(sum(size for count, size in groups if count) <= total)

    def shares_at(level: int) -> list[int]:
        return [min(count, max(level // size, least)) for count, size in groups]

    def used(shares: Sequence[int]) -> int:
        return sum(share * size for share, size in zip(shares, sizes, strict=True))

    low, high = 0, max((count * size for count, size in groups), default=0)  # shares_at(low) fits
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if used(shares_at(level)) <= total else (low, level - 1)
    shares = shares_at(low)
    for i, (count, size) in enumerate(groups):
        if shares[i] < count and used(shares) + size <= total:
            shares[i] += 1
    return shares


def _limited(given: object, size: float) -> int:
    if size > MAX_BUDGET:
        raise ValueError(f"budget must be at most {MAX_BUDGET:,}, or None for no limit, not {given!r:.60}")
    return int(size)
