"""Examples within a budget: all of them, or as equal shares of the tasks as can be."""

import torch
from torch import Generator

from ogd.memory.budget import Budget, BudgetExceeded
from ogd.memory.rehearsal.examples import Examples
from ogd.memory.shares import equal_shares


def within(budget: Budget, when_full: str, examples: Examples, generator: Generator) -> Examples:
    """The examples if they are within the budget; else an error, or with "shrink" a uniform draw of each task's."""
    if when_full == "raise" or budget.holds(len(examples), examples.nbytes):
        budget.check(len(examples), examples.nbytes, "examples")
        return examples
    counts = examples.counts
    order = [torch.randperm(n, generator=generator) for n in counts]
    most = budget.directions if budget.directions is not None else _fitting(budget.nbytes or 0, examples)
    while True:
        shares = equal_shares(counts, most)
        if not all(shares):
            raise BudgetExceeded(
                f"the budget of {budget.said('examples')} is too small for an example of each of {len(counts)} tasks: "
                "nothing was stored; raise budget=, or forget a task first: memory.forget(0)"
            )
        drawn = [examples.rows_of(t)[order[t][:share]] for t, share in enumerate(shares)]
        smaller = examples.only(torch.cat(drawn).sort().values)
        if budget.holds(len(smaller), smaller.nbytes):
            return smaller
        most = min(most - 1, _fitting(budget.nbytes or 0, smaller))


def _fitting(nbytes: int, examples: Examples) -> int:
    return nbytes * len(examples) // examples.nbytes
