"""Which examples of a finished task to keep, of many that were drawn uniformly.

balanced     as equal numbers of each class as can be
uncertain    the more uncertain the model is of an example, the likelier (`ogd.memory.inputs.uncertain`)
hardest      those that the model is most uncertain of, which is FROMP's choice
herding      one after the other, so that the mean of the kept examples' probabilities stays near the mean of all
"""

import torch
from torch import Generator, Tensor

from ogd.memory.inputs.balance import balanced_rows
from ogd.memory.inputs.uncertain import entropies, uncertain_order


def chosen_rows(choose: str, z: Tensor, y: Tensor, n: int, generator: Generator) -> Tensor:
    """Return n rows of the examples with scores z (m, C) and classes y (m,); their first k are a choice of k, too.

    Examples:
        >>> z = torch.tensor([[9.0, 0.0], [0.1, 0.0], [0.0, 0.0]])
        >>> chosen_rows("hardest", z, torch.tensor([0, 0, 1]), 2, Generator())
        tensor([2, 1])
    """
    if choose == "balanced":
        rows = balanced_rows(y, n, generator)
        return rows[torch.randperm(n, generator=generator)]
    if choose == "uncertain":
        return uncertain_order(entropies(z), n, generator)
    if choose == "hardest":
        return entropies(z).topk(n).indices
    return herded(z.softmax(-1), n)


def herded(p: Tensor, n: int) -> Tensor:
    """Return n rows of p (m, C), each of which brings the mean of those so far nearest to the mean of all.

    Examples:
        >>> herded(torch.tensor([[0.0], [1.0], [0.4]]), 2)
        tensor([2, 1])
    """
    goal, total = p.mean(0), torch.zeros_like(p[0])
    left, rows = torch.zeros(len(p)), []
    for k in range(1, n + 1):
        row = int(((total + p) / k - goal).square().sum(1).add(left).argmin())
        rows.append(row)
        total, left[row] = total + p[row], torch.inf
    return torch.tensor(rows)
