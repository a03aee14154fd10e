"""Slow, obviously correct references in float64; everything fast is compared with them."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def sgd(
    model: nn.Module, batches: list[tuple[Tensor, Tensor, list[list[int]] | None]], lr: float, penalty: float = 0.0
) -> None:
    """Plain SGD by autograd on one ordinary module; each example's softmax runs over its own classes."""
    for x, y, heads in batches:
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(len(y)):
            classes = list(range(100)) if heads is None else heads[i]
            logits = model(x[i : i + 1])
            kept = [c for c in range(logits.shape[1]) if c in classes]
            loss = loss + F.cross_entropy(logits[:, kept], torch.tensor([kept.index(int(y[i]))])) / len(y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for w in model.parameters():
                w.sub_(lr * (w.grad + penalty * w))


def accuracy(model: nn.Module, x: Tensor, y: Tensor, classes: list[int]) -> float:
    """One example at a time."""
    right = 0
    for example, label in zip(x, y, strict=True):
        logits = model(example[None])[0].detach()
        right += int(max(classes, key=lambda c: float(logits[c])) == int(label))
    return right / len(y)


def metrics(a: np.ndarray) -> dict[str, float]:
    """The definitions of docs/records.md, loop by loop; a is (1 + tasks, tasks)."""
    last = a.shape[1]
    average = sum(a[last][j] for j in range(last)) / last
    lost = [max(a[i][j] for i in range(1, last)) - a[last][j] for j in range(last - 1)]
    back = [a[last][j] - a[j + 1][j] for j in range(last - 1)]
    forward = [a[j][j] - a[0][j] for j in range(1, last)]
    return {
        "average_accuracy": average,
        "forgetting": sum(lost) / len(lost),
        "backward_transfer": sum(back) / len(back),
        "forward_transfer": sum(forward) / len(forward),
    }
