"""What may happen to a protection and what it protects: freezing, remembering midway, endings, copies."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import optim
from torch.nn import functional

from memory_models import moved, remembered, rows, train
from ogd.memory import ExampleMemory, GradientMemory, Memory
from reference import flat, logit_gradients, trainable


def test_a_parameter_that_still_moves_when_frozen_stays_protected() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    memory.protect(optimizer, every=1)
    train(model, optimizer, x, y, 3)
    model[2].weight.requires_grad_(False)
    before, frozen = flat(list(model.parameters())), model[2].weight.clone()
    for _ in range(4):
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert not torch.equal(model[2].weight, frozen)
    assert (G @ (flat(list(model.parameters())) - before)).abs().max() < 1e-10


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_model_that_is_converted_midway_stays_protected(every: int, dtypes: tuple[torch.dtype, ...]) -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model.to(dtypes[0])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=every)
    before = flat(list(model.parameters())).double()
    for dtype in dtypes:  # with every=5, inside a window
        model.to(dtype)
        train(model, optimizer, x.to(dtype), y, 7)
    memory.settle()
    assert protection.projector is not None
    assert (G @ (flat(list(model.parameters())).double() - before)).abs().max() < 1e-4
    assert {a.dtype for a in protection._anchor} == {dtypes[1]}


@pytest.mark.parametrize("frozen", [False, True])
def test_a_window_is_projected_as_it_began_when_the_model_is_converted(frozen: bool) -> None:
    ends = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        x, y = torch.randn(6, 4), torch.arange(6) % 3
        memory = GradientMemory(model)
        memory.remember((x, y))
        optimizer = optim.SGD(model.parameters(), lr=0.3)
        memory.protect(optimizer, every=100)
        train(model, optimizer, x.flip(1), y, 20)
        model.to(dtype)
        model[0].requires_grad_(not frozen)
        with torch.inference_mode():
            memory.settle()
        ends.append(flat(list(model.parameters())).float())
        train(model, optimizer, x.to(dtype), y, 3)
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("every", [1, 3])
def test_parameters_that_join_between_the_steps_of_two_optimizers_are_protected(every: int) -> None:
    memory, G, x, y = remembered("mlp")
    model, weights = memory.model, list(memory.model.parameters())
    before = flat(weights)
    first, second = optim.SGD(weights[:2], lr=0.1), optim.SGD(weights[2:3], lr=0.1)
    memory.protect([first, second], every=every)
    for step in range(4):
        functional.cross_entropy(model(x), y).backward()
        first.step()
        if step == 2:
            second.add_param_group({"params": weights[3:]})
        second.step()
        model.zero_grad()
    memory.settle()
    assert not torch.equal(flat(weights[3:]), before[-len(flat(weights[3:])) :])
    assert (G @ (flat(weights) - before)).abs().max() < 1e-10


class Derived(optim.SGD):
    """Its hooks run twice per step, once PyTorch has made a plain SGD: for this step and for that of its base class."""

    fails = False

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = super().step(closure)
        if self.fails:
            raise FloatingPointError
        return loss


@pytest.mark.parametrize("every", [1, 4])
def test_a_step_that_calls_that_of_its_base_class_is_one_step(every: int) -> None:
    ends = []
    for kind in (optim.SGD, Derived):
        memory, G, x, y = remembered("mlp")
        before = flat(list(memory.model.parameters()))
        optimizer = kind(memory.model.parameters(), lr=0.1, momentum=0.9)
        protection = memory.protect(optimizer, every=every)
        train(memory.model, optimizer, x, y, 6)
        assert protection.pending == 6 % every
        memory.settle()
        ends.append(flat(list(memory.model.parameters())))
        assert (G @ (ends[-1] - before)).abs().max() < 1e-10
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("every", [1, 4])
def test_such_a_step_that_raises_counts_as_well(every: int) -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(list(memory.model.parameters()))
    optim.SGD(memory.model.parameters(), lr=0.1)
    optimizer = Derived(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=every)
    for Derived.fails in (False, True, False, True, False):
        try:
            train(memory.model, optimizer, x, y, 1)
        except FloatingPointError:
            assert Derived.fails
    memory.settle()
    assert (G @ (flat(list(memory.model.parameters())) - before)).abs().max() < 1e-10


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_such_a_step_rehearses_once(steps: int) -> None:
    drawn = []
    for kind in (optim.SGD, Derived):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        x, y = torch.randn(6, 4), torch.arange(6) % 3
        memory = ExampleMemory(model)
        memory.remember((x, y))
        optimizer = kind(model.parameters(), lr=0.1)
        rehearsal = memory.protect(optimizer, every=2)
        train(model, optimizer, x, y, steps)
        drawn.append((memory.draws, rehearsal.since))
    assert drawn[0] == drawn[1] == (steps // 2, [steps % 2])


def test_gradients_are_remembered_at_settled_weights() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=7)
    before = flat(list(model.parameters()))
    train(model, optimizer, x, y, 3)
    assert protection.pending == 3
    memory.remember((x, y))
    assert protection.pending == 0
    assert (G @ (flat(list(model.parameters())) - before)).abs().max() < 1e-10
    torch.testing.assert_close(rows(memory), torch.cat([G, logit_gradients(model, x, y)]))


def test_protection_ends() -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    with memory.protect(optimizer, every=50):
        train(memory.model, optimizer, x, y, 3)
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10
    memory.protect(optimizer, every=50)
    assert len(memory._protections) == 1
    train(memory.model, optimizer, x, y, 3)
    memory.unprotect(optimizer)
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10
    train(memory.model, optimizer, x, y, 1)
    assert (G @ moved(memory.model, before)).abs().max() > 1e-3
    with pytest.raises(ValueError, match="not protected by this memory"):
        memory.unprotect(optimizer)


def test_a_protection_that_has_ended_does_not_end_the_next() -> None:
    memory, G, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    with memory.protect(optimizer, every=1):
        memory.unprotect(optimizer)
        memory.protect(optimizer, every=5)
    with pytest.raises(ValueError, match="protected already"):
        memory.protect(optimizer, every=1)
    before = flat(list(memory.model.parameters()))
    train(memory.model, optimizer, x, y, 5)
    assert (G @ (flat(list(memory.model.parameters())) - before)).abs().max() < 1e-10


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
def test_a_copy_of_a_memory_protects_no_optimizer(copied: Callable[[Memory], Memory]) -> None:
    memory, _, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=5)
    train(memory.model, optimizer, x, y, 2)
    twin = copied(memory)
    assert torch.equal(rows(twin), rows(memory))
    assert torch.equal(flat(list(twin.model.parameters())), flat(list(memory.model.parameters())))
    twin.unprotect()
    with pytest.raises(ValueError, match="protected already"):
        memory.protect(optimizer, every=1)
    assert protection.active
    twin.protect(optim.SGD(twin.model.parameters(), lr=0.1), every=1)


def test_a_protection_says_what_it_holds() -> None:
    model = torch.nn.Linear(3, 2)
    data = (torch.randn(6, 3), torch.randint(2, (6,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = GradientMemory(model, per_task=4)
    memory.remember(data)
    protection = memory.protect(optimizer, every=5)
    assert repr(protection) == "Projection(SGD, every=5, 0 steps pending)"
    protection.unprotect()
    assert repr(protection) == "Projection(ended, every=5, 0 steps pending)"
    memory = ExampleMemory(model, per_task=4)
    memory.remember(data)
    assert repr(memory.protect(optimizer, every=5, batch_size=3)) == "Rehearsal(SGD, every=5, batch_size=3)"
