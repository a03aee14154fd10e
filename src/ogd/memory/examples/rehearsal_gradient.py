"""Compute the gradient of the remembered loss in batches that take no more memory than the user's own."""

from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from ogd.memory.data.batches import without_tensors
from ogd.memory.examples.kept_examples import Batch
from ogd.memory.gradients.autograd_graph import without_gradients

Gradients = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor | None]]  # of a loss

SMALL = 2**18  # inputs and outputs, together a megabyte of float32, that are never worth a division


def micro_batches(batch: Batch, numbers: int | None) -> list[Batch]:
    """Divide a batch so that no input tensor has more numbers than the largest of a training batch; None: unknown.

    Examples:
        >>> batch = Batch(torch.zeros(12, 4096), None, torch.zeros(12, 2**16))
        >>> [len(part) for part in micro_batches(batch, 5 * 4096)]
        [5, 5, 2]
    """
    inputs = max((t.numel() // len(batch) for t in without_tensors(batch.x)[0]), default=1) or 1
    each = inputs + prod(batch.z.shape[1:])
    if numbers is None or len(batch) * inputs <= numbers or len(batch) * each <= SMALL:
        return [batch]
    return batch.split(max(numbers // inputs, SMALL // each, 1))


def from_graph(loss: Tensor, params: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return gradients without `backward`, so that neither `.grad` nor its hooks take part."""
    return torch.autograd.grad(loss, params, allow_unused=True) if params else ()


def by_backward(model: nn.Module, loss: Tensor, params: Sequence[Tensor]) -> list[Tensor | None]:
    """Return gradients that `backward` computes, which is all that reentrant checkpointing allows."""
    with without_gradients(model):
        loss.backward()
        return [p.grad for p in params]


def sum_gradients(
    losses: Iterable[Tensor], params: Sequence[Tensor], gradients: Gradients = from_graph
) -> tuple[list[Tensor | None], Tensor | None, bool]:
    """Return the gradient of a sum of losses, the sum (None if it is empty), and whether any loss has a graph.

    Each loss is freed before the next is computed.

    Examples:
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> sum_gradients(((w * c).sum() for c in (2, 3)), [w])
        ([tensor([5.])], tensor(5.), True)
    """
    found: list[Tensor | None] = [None] * len(params)
    total: Tensor | None = None
    dependent = False
    for loss in losses:
        dependent |= loss.requires_grad
        if loss.requires_grad:
            new = list(gradients(loss, params))
            for i, old in enumerate(found):
                g, new[i] = new[i], None  # each is freed as soon as it is added
                found[i] = g if old is None else old if g is None else old + g
        total = loss.detach() if total is None else total + loss.detach()
        del loss
    return found, total, dependent
