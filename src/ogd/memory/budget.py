"""How much may be stored: a number of directions or of bytes."""

import re
from dataclasses import dataclass

from ogd.checks import is_whole

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


MOST = 2**63 - 1


class BudgetExceeded(ValueError):
    """A task does not fit the memory's budget; nothing of it was stored."""


@dataclass(frozen=True)
class Budget:
    """The most that may be stored; None is no limit."""

    directions: int | None = None
    nbytes: int | None = None

    @classmethod
    def parse(cls, budget: "int | str | Budget | None") -> "Budget":
        """A budget as users write it.

        Examples:
            >>> Budget.parse(2000), Budget.parse("64 MB")
            (Budget(directions=2000, nbytes=None), Budget(directions=None, nbytes=64000000))
        """
        if budget is None:
            return cls()
        if isinstance(budget, Budget):
            return budget
        if isinstance(budget, str):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?i?B)\s*", budget, re.IGNORECASE)
            if match:
                return cls(nbytes=_within(budget, float(match[1]) * _UNITS[match[2].upper()]))
        elif is_whole(budget, 1):
            return cls(directions=_within(budget, int(budget)))
        raise ValueError(f'budget must be a number of directions, bytes such as "64MB", or None, not {budget!r}')

    def __str__(self) -> str:
        return self.said("directions")

    def said(self, unit: str) -> str:
        """The budget in words; `unit` is what it counts."""
        return f"{self.nbytes:,} bytes" if self.directions is None else f"{self.directions:,} {unit}"

    def holds(self, directions: int, nbytes: int) -> bool:
        """Whether a memory of this size is within the budget."""
        pairs = ((directions, self.directions), (nbytes, self.nbytes))
        return all(most is None or size <= most for size, most in pairs)

    def check(self, directions: int, nbytes: int, unit: str = "directions") -> None:
        """Raise unless a memory of this size is within the budget; `unit` is what it counts."""
        sizes = ((directions, self.directions, unit), (nbytes, self.nbytes, "bytes"))
        for size, most, what in sizes:
            if most is not None and size > most:
                raise BudgetExceeded(
                    f"the memory would hold {size:,} {what}, its budget is {most:,}: nothing was stored; "
                    'raise budget=, remember fewer examples (per_task=), or let old tasks shrink (when_full="shrink")'
                )


def _within(given: object, size: float) -> int:
    if size > MOST:
        raise ValueError(f"budget must be at most {MOST:,}, or None for no limit, not {given!r:.60}")
    return int(size)
