"""A-GEM: Averaged Gradient Episodic Memory (Chaudhry et al., 2019).

Some examples of every finished task are kept. In each step a batch of them gives a reference gradient g_ref, and

    g̃ = g − min(g·g_ref, 0) / (g_ref·g_ref)  g_ref

so that the loss on the memory does not grow to first order. Gradients stay factored: for layers with factors
(a, δ) and (a', δ') the inner product is Σ ((a a'ᵀ + 1) ∘ (δ δ'ᵀ)), and g̃ is a batch of both kinds of rows.
"""

import torch
from torch import Tensor

from ogd import catalogue, seeds
from ogd.benchmarks import Task
from ogd.benchmarks.batch import Batch, examples
from ogd.methods.method import Method
from ogd.models import Factors, StackedMLP
from ogd.models.loss import loss_gradient

BLOCK = 1000  # steps whose reference batches are drawn at once


class AGEM(Method):
    """Keep `per_task` examples a task; draw `reference_batch` of them a step.

    Examples:
        >>> AGEM(per_task=100).per_task
        100
    """

    name = "agem"

    def __init__(self, per_task: int = 200, reference_batch: int = 10) -> None:
        catalogue.check_options("agem", per_task=per_task, reference_batch=reference_batch)
        self.per_task, self.reference_batch = per_task, reference_batch

    def begin(self, model: StackedMLP, seed: int) -> None:
        self.seed, self.tasks, self.step = seed, 0, 0
        self.memory: Batch | None = None
        self.index = torch.empty(0)

    def end_task(self, model: StackedMLP, task: Task, columns: Tensor | None) -> None:
        self.tasks += 1
        index = seeds.draw(self.seed, model.runs, f"memory/{self.tasks}", len(task.train), self.per_task)
        kept = examples(task, index, columns, model.sizes[-1])
        heads = torch.zeros(kept.target.shape[-1]) if kept.head is None else kept.head
        kept = Batch(kept.x, kept.target, heads.expand_as(kept.target))  # each example has its own task's head
        self.memory = kept if self.memory is None else _joined(self.memory, kept)
        self.index = torch.empty(0)  # what was drawn from a smaller memory is out of date

    def transform(self, gradient: Factors, model: StackedMLP) -> Factors:
        if self.memory is None:
            return gradient
        batch = self._draw(model)
        inputs, logits = model.activations(batch.x.to(gradient[0][0].dtype))
        reference = model.backward(inputs, loss_gradient(logits, batch.target, batch.head))
        product = dot(gradient, reference)  # (R,)
        if not (product < 0).any():
            return gradient
        c = -product.clamp(max=0) / dot(reference, reference)
        c = torch.where(product < 0, c, 0)[:, None, None]  # a zero reference gives 0/0
        pairs = zip(gradient, reference, strict=True)
        return [(torch.cat([a, a_ref], 1), torch.cat([d, c * d_ref], 1)) for (a, d), (a_ref, d_ref) in pairs]

    def skip(self, steps: int) -> None:
        if self.memory is not None:
            self.step += steps

    def _draw(self, model: StackedMLP) -> Batch:
        assert self.memory is not None
        n, at = self.memory.x.shape[1], self.step % BLOCK
        if at == 0 or not self.index.numel():
            purpose = f"reference/{self.tasks}/{self.step // BLOCK}"
            draws = [seeds.generator(self.seed, r, purpose) for r in model.runs]
            self.index = torch.stack([torch.randint(n, (BLOCK, self.reference_batch), generator=g) for g in draws])
        self.step += 1
        index = self.index[:, at]  # (R, B)
        rows = torch.arange(len(index))[:, None]
        head = None if self.memory.head is None else self.memory.head[rows, index]
        return Batch(self.memory.x[rows, index], self.memory.target[rows, index], head)


def dot(g: Factors, h: Factors) -> Tensor:
    """Return the inner product (R,) of two gradients, weights and biases of all layers together."""
    total = torch.zeros(len(g[0][0]), dtype=g[0][0].dtype)
    for (a, d), (a_other, d_other) in zip(g, h, strict=True):
        total += (torch.bmm(a, a_other.mT).add_(1) * torch.bmm(d, d_other.mT)).sum((1, 2))
    return total


def _joined(one: Batch, other: Batch) -> Batch:
    assert one.head is not None
    assert other.head is not None
    parts = zip((one.x, one.target, one.head), (other.x, other.target, other.head), strict=True)
    return Batch(*(torch.cat(pair, 1) for pair in parts))
