"""Projection with kept examples: OGD with gradients at the present weights, renewed; and what is refused."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from memory_models import MODELS, make, moved, rows, train
from ogd.memory import ExampleMemory, Memory, Protection
from reference import flat, logit_gradients, project_dense, trainable


def both(name: str, **options: Any) -> tuple[ExampleMemory, Memory]:
    """The same task remembered in both ways, by two models alike; inputs are such as are kept without loss."""
    found = []
    for keep in ("examples", "gradients"):
        model, x, y = make(name, n=5)
        x = x.half().double() if x.is_floating_point() else x
        memory = Memory(model, keep=keep, **options)
        memory.remember((x, y))
        found.append(memory)
    return tuple(found)  # type: ignore[return-value]


@pytest.mark.parametrize("outputs", ["true", "all"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_first_window_is_that_of_stored_gradients(name: str, every: int, outputs: str) -> None:
    weights = []
    for memory in both(name, outputs=outputs):
        model = memory.model.eval()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        memory.protect(optimizer, every, by="projection")
        _, x, y = make(name, n=8, seed=1)
        train(model, optimizer, x, y, 6)
        memory.settle()
        weights.append(flat(trainable(model)))
    torch.testing.assert_close(*weights, rtol=0, atol=1e-8)


@pytest.mark.parametrize("every", [1, 2])
def test_gradients_are_renewed_after_so_many_steps(every: int) -> None:
    memory, _ = both("mlp")
    model = memory.model
    _, x, y = make("mlp", n=5)
    _, x2, y2 = make("mlp", n=8, seed=1)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    memory.protect(optimizer, every, by="projection", refresh=4)
    G = None
    for step in range(12):
        if step % 4 == 0:
            G = logit_gradients(model, x.half().double(), y)
        if step % every == 0:
            before = flat(trainable(model))
        train(model, optimizer, x2, y2, 1)
        assert G is not None
        if (step + 1) % every == 0:
            assert (G @ moved(model, before)).abs().max() < 1e-10
        torch.testing.assert_close(rows(memory_rows(memory)), G, rtol=0, atol=1e-10)


def memory_rows(memory: Any) -> Any:
    """As `rows` wants it: with as many rows as there are gradients."""

    class Rows:
        parameters, store = memory.parameters, memory.store

        def __len__(self) -> int:
            return len(memory.store)

    return Rows()


def test_project_takes_the_gradients_of_now() -> None:
    memory, _ = both("mlp")
    _, x, y = make("mlp", n=5)
    with torch.no_grad():
        for p in memory.model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    update = {name: torch.randn_like(p) for name, p in memory.model.named_parameters()}
    G = logit_gradients(memory.model, x.half().double(), y)
    found = flat(list(memory.project(update).values()))
    torch.testing.assert_close(found, project_dense(G, flat(list(update.values()))), rtol=0, atol=1e-10)


def test_the_end_of_a_protection_frees_the_gradients_and_stats_tell_of_them() -> None:
    memory, _ = both("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    with memory.protect(optimizer, by="projection"):
        _, x, y = make("mlp", n=8, seed=1)
        train(memory.model, optimizer, x, y, 2)
        assert memory.stats().directions == 5
        assert 0 < memory.stats().kept[0] < 1
        assert memory.resident_nbytes > memory.nbytes
        memory.remember((x, y))  # no warning: the weights moved under protection
    assert memory.resident_nbytes == memory.nbytes


def test_labels_are_asked_for_before_training_where_projection_needs_them() -> None:
    model, x, y = make("mlp")
    memory = Memory(model, keep="examples")
    memory.remember((x, None))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="label"):
        memory.protect(optimizer, by="projection")
    memory.forget(0)
    assert isinstance(memory.protect(optimizer, by="projection"), Protection)
    with pytest.raises(ValueError, match='outputs="true" needs a label'):
        memory.remember((x, None))
    memory.remember((x, y))


@pytest.mark.parametrize("keep", ["examples", "gradients"])
def test_an_optimizer_without_protection_is_noticed(keep: Any) -> None:
    model, x, y = make("mlp")
    memory = Memory(model, keep=keep)
    first = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(first)
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


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "rehearse gradients": (
        "gradients",
        {"by": "rehearsal"},
        'needs the examples: make the memory with keep="examples"',
    ),
    "unknown": ("examples", {"by": "magic"}, 'by must be "projection" or "rehearsal"'),
    "empty": ("examples", {"by": ""}, 'by must be "projection" or "rehearsal"'),
    "list": ("examples", {"by": ["rehearsal"]}, 'by must be "projection" or "rehearsal"'),
    "batch": ("examples", {"batch": 0}, "batch must be a whole number, 1 or more"),
    "batch true": ("examples", {"batch": True}, "batch must be a whole number"),
    "alpha negative": ("examples", {"alpha": -1}, "alpha must be a number, 0 or more"),
    "alpha nan": ("examples", {"alpha": float("nan")}, "alpha must be a number"),
    "alpha infinite": ("examples", {"alpha": float("inf")}, "alpha must be a number"),
    "alpha huge": ("examples", {"alpha": 10**400}, "alpha must be a number"),
    "alpha word": ("examples", {"alpha": "x"}, "alpha must be a number"),
    "labels": ("examples", {"labels": 1}, "labels must be True or False"),
    "nothing": ("examples", {"alpha": 0, "labels": False}, "rehearses nothing"),
    "auto": ("examples", {"every": "auto"}, "every must be a whole number of steps"),
    "every": ("examples", {"every": 0}, "every must be a whole number of steps"),
    "refresh of rehearsal": ("examples", {"refresh": 5}, 'refresh= is an option of by="projection"'),
    "alpha of projection": ("examples", {"by": "projection", "alpha": 1}, 'alpha= is an option of by="rehearsal"'),
    "refresh zero": ("examples", {"by": "projection", "refresh": 0}, "refresh must be a whole number"),
    "refresh of gradients": ("gradients", {"refresh": 5}, "refresh= needs the examples"),
    "batch of gradients": ("gradients", {"batch": 5}, 'batch= is an option of by="rehearsal"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_are_checked_before_the_optimizer_is_touched(case: str) -> None:
    keep, options, message = REFUSED[case]
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory = Memory(model, keep=keep)
    with pytest.raises(ValueError, match=message):
        memory.protect(optimizer, **options)
    memory.protect(optimizer)


def test_optimizers_that_cannot_rehearse() -> None:
    model = nn.Linear(2, 2)
    memory = Memory(model, keep="examples")
    with pytest.raises(ValueError, match="LBFGS cannot be protected"):
        memory.protect(optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="made for another model"):
        memory.protect(optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    memory.remember((torch.randn(3, 2), None))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1, alpha=0)
    with pytest.raises(ValueError, match="no labels are kept"):
        optimizer.step()
