"""What `protect` of each memory accepts, and an optimizer that was left without protection."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from memory_models import make, train
from ogd.memory import ExampleMemory
from ogd.memory.loading import KINDS


@pytest.mark.parametrize("keep", ["examples", "gradients"])
def test_an_optimizer_without_protection_is_noticed(keep: Any) -> None:
    model, x, y = make("mlp")
    memory = KINDS[keep](model)
    first = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(first, every=1)
    memory.remember((x, y))
    train(model, first, x, y.roll(1), 3)
    memory.remember((x, y))
    memory.unprotect()
    train(model, optim.SGD(model.parameters(), lr=0.5), x, y.roll(1), 5)
    with pytest.warns(UserWarning, match="left out for a new optimizer"):
        memory.remember((x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if isinstance(memory, ExampleMemory):  # those who write the loss into their loop protect, too
            optimizer = optim.SGD(model.parameters(), lr=0.5)
            loss = memory.remembered_loss(4)
            assert loss is not None
            (functional.cross_entropy(model(x), y.roll(2)) + loss).backward()
            optimizer.step()
        memory.remember((x, y))


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "batch_size": ("examples", {"batch_size": 0}, ValueError, "batch_size must be a whole number, 1 or more"),
    "batch_size true": ("examples", {"batch_size": True}, ValueError, "batch_size must be a whole number"),
    "alpha negative": ("examples", {"alpha": -1}, ValueError, "alpha must be a number, 0 or more"),
    "alpha nan": ("examples", {"alpha": float("nan")}, ValueError, "alpha must be a number"),
    "alpha infinite": ("examples", {"alpha": float("inf")}, ValueError, "alpha must be a number"),
    "alpha huge": ("examples", {"alpha": 10**400}, ValueError, "alpha must be a number"),
    "alpha word": ("examples", {"alpha": "x"}, ValueError, "alpha must be a number"),
    "labels": ("examples", {"labels": 1}, ValueError, "labels must be True or False"),
    "nothing": ("examples", {"alpha": 0, "labels": False}, ValueError, "rehearses nothing"),
    "auto": ("examples", {"every": "auto"}, ValueError, "every must be a whole number of steps, 1 or more, not 'auto'"),
    "every": ("examples", {"every": 0}, ValueError, "every must be a whole number of steps"),
    "every of gradients": (
        "gradients",
        {"every": 0.5},
        ValueError,
        'every must be a whole .* or more, "growing" or "auto"',
    ),
    "batch_size of gradients": ("gradients", {"batch_size": 5}, TypeError, "batch_size"),
    "alpha of gradients": ("gradients", {"alpha": 1}, TypeError, "alpha"),
    "by": ("gradients", {"by": "projection"}, TypeError, "by"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_are_checked_before_the_optimizer_is_touched(case: str) -> None:
    keep, options, error, message = REFUSED[case]
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory = KINDS[keep](model)
    with pytest.raises(error, match=message):
        memory.protect(optimizer, **options)
    memory.protect(optimizer, every=1)


def test_optimizers_that_cannot_rehearse() -> None:
    model = nn.Linear(2, 2)
    memory = ExampleMemory(model)
    with pytest.raises(ValueError, match="LBFGS cannot be protected"):
        memory.protect(optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="made for another model"):
        memory.protect(optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    memory.remember((torch.randn(3, 2), None))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1, alpha=0)
    with pytest.raises(ValueError, match="no labels are kept"):
        optimizer.step()
