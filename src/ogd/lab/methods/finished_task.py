"""A task that has just been learned, as methods see it: how many of its examples to store, and which.

uniform      any examples
balanced     as equal numbers of each class as possible
uncertain    the more uncertain the model is of an example, the likelier
hardest      the examples that the model is most uncertain of, as FROMP chooses them
herding      one after the other, so that the mean of the stored examples' probabilities stays near the mean of all

All choices but the first are made among `AMONG` · n examples that are drawn uniformly.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ogd import seeds
from ogd.checks import ArgumentError
from ogd.lab.benchmarks import Task
from ogd.lab.benchmarks.batches import Batch, examples
from ogd.lab.models.stack import Stack
from ogd.memory.data.budget import equal_shares
from ogd.memory.data.sampling import balanced_rows
from ogd.memory.examples.clustering import cluster_means

AMONG = 20
FLOOR = 0.01  # nats: the weight of an example of which the model is certain


@dataclass(frozen=True)
class FinishedTask:
    """The task, the stack with its weights at the end of the task, and the task's number, counted from 1."""

    task: Task
    model: Stack
    number: int
    step: int  # how many steps were taken since training began
    outputs: int  # logits of the benchmark
    seed: int

    def draw(self, n: int, choose: str = "uniform", merge: int = 1) -> Batch:
        """Return n training examples of the task per run, the same ones for every method with the same `choose`.

        With `merge`, draw `merge` × n examples, cluster them and return the means (`ogd.memory.examples.clustering`).
        """
        if merge > 1:
            return self._merged(self.draw(n * merge, choose), n)
        runs, columns = self.model.runs, self.task.columns(self.model.runs)
        among = n if choose == "uniform" else n * AMONG
        index = seeds.draw(self.seed, runs, f"memory/{self.number}", len(self.task.train), among)
        batch = examples(self.task, index, columns, self.outputs)
        if choose == "uniform" or index.shape[1] <= n:
            return batch
        z = self.model.passing(batch.x)[1]
        z = z if batch.head is None else z + batch.head
        draws = [seeds.generator(self.seed, run, f"choice/{self.number}") for run in runs]
        y = self.task.train.y[index]
        rows = [choose_rows(choose, z[r], y[r], n, draws[r]) for r in range(len(runs))]
        return examples(self.task, index.gather(1, torch.stack(rows)), columns, self.outputs)

    def _merged(self, batch: Batch, n: int) -> Batch:
        kept = []
        for r, run in enumerate(self.model.runs):
            generator = seeds.generator(self.seed, run, f"merge/{self.number}")
            kept.append(cluster_means((batch.x[r], batch.target[r].argmax(-1)), n, generator))
        x, y = (torch.stack(parts) for parts in zip(*kept, strict=True))
        return Batch(x, torch.eye(self.outputs)[y], batch.head)


def task_budgets(per_task: int, in_total: int, tasks: int) -> list[int]:
    """Return how many examples each task may store: `per_task`, or an equal share of `in_total` unless that is 0.

    Examples:
        >>> task_budgets(200, 0, 2), task_budgets(200, 500, 3)
        ([200, 200], [167, 167, 166])
    """
    if not in_total:
        return [per_task] * tasks
    if in_total < tasks:
        raise ArgumentError("in_total", f"{in_total} examples cannot be shared by {tasks} tasks")
    return equal_shares([in_total] * tasks, in_total)


def choose_rows(choose: str, z: Tensor, y: Tensor, n: int, generator: Generator) -> Tensor:
    """Return n rows of the examples with scores z (m, C) and classes y (m,); their first k are a choice of k, too.

    Examples:
        >>> z = torch.tensor([[9.0, 0.0], [0.1, 0.0], [0.0, 0.0]])
        >>> choose_rows("hardest", z, torch.tensor([0, 0, 1]), 2, Generator())
        tensor([2, 1])
    """
    if choose == "balanced":
        rows = balanced_rows(y, n, generator)
        return rows[torch.randperm(n, generator=generator)]
    if choose == "uncertain":
        return uncertain_order(entropies(z), n, generator)
    if choose == "hardest":
        return entropies(z).topk(n).indices
    return herd(z.softmax(-1), n)


def entropies(z: Tensor) -> Tensor:
    """Return the entropy H = −Σ_c p_c log p_c of each row's softmax p, given scores z (m, C).

    Examples:
        >>> entropies(torch.tensor([[0.0, 0.0], [100.0, 0.0]])).round(decimals=4)
        tensor([0.6931, 0.0000])
    """
    H: Tensor = torch.special.entr(z.float().softmax(-1)).sum(-1)
    return H


def uncertain_order(H: Tensor, n: int, generator: Generator) -> Tensor:
    """Return n rows, drawn without replacement in proportion to w = H + FLOOR; their first k are a draw of k, too.

    These are the largest log w + g, where g has Gumbel's distribution (Efraimidis and Spirakis, 2006).

    Examples:
        >>> H = torch.tensor([0.0, 0.7, 0.7, 0.0])
        >>> uncertain_order(H, 2, Generator().manual_seed(0)).sort().values
        tensor([1, 2])
    """
    u = torch.rand(len(H), generator=generator, dtype=torch.float64).clamp(min=1e-300)
    keys = (H.double() + FLOOR).log() - (-u.log()).log()
    return keys.topk(n).indices


def herd(p: Tensor, n: int) -> Tensor:
    """Return n rows of p (m, C), each of which brings the mean of those so far nearest to the mean of all.

    Examples:
        >>> herd(torch.tensor([[0.0], [1.0], [0.4]]), 2)
        tensor([2, 1])
    """
    goal, total = p.mean(0), torch.zeros_like(p[0])
    left, rows = torch.zeros(len(p)), []
    for k in range(1, n + 1):
        row = int(((total + p) / k - goal).square().sum(1).add(left).argmin())
        rows.append(row)
        total, left[row] = total + p[row], torch.inf
    return torch.tensor(rows)
