"""Optimizers as they come: in wrappers, fused, several as one, and those that step in the backward pass."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from memory_models import moved, remembered, train
from ogd.memory import Memory
from ogd.memory.optimizers.protectable import hooked_optimizer
from reference import flat, project_dense, trainable


class Wrapper:
    """What many frameworks have: not an Optimizer, with one inside."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


class Claimed(optim.Optimizer):
    """Calls itself an Optimizer and was never made as one, as Accelerate's does."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    step, zero_grad = Wrapper.step, Wrapper.zero_grad


class Sharing(optim.SGD):
    """Takes over all that its inner one has, as Lightning's does."""

    def __init__(self, optimizer: Any) -> None:
        self.__dict__ = dict(vars(optimizer))
        self.optimizer = optimizer

    step, zero_grad = Wrapper.step, Wrapper.zero_grad


@pytest.mark.parametrize("wrap", [Wrapper, Claimed, Sharing, lambda o: Claimed(Wrapper(o))])
def test_a_wrapper_is_protected_by_what_is_inside(wrap: Any) -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    inner = optim.Adam(memory.model.parameters(), lr=0.01)
    optimizer = wrap(inner)
    assert hooked_optimizer(optimizer) is inner
    memory.protect(optimizer, every=2)
    with pytest.raises(ValueError, match="protected already"):
        memory.protect(inner, every=1)
    train(memory.model, optimizer, x, y, 4)
    assert moved(memory.model, before).norm() > 1e-3
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10
    memory.unprotect(optimizer)
    assert memory._protections == []


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    memory, G, x, y = remembered("mlp", torch.float32)
    model = memory.model
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(model, optim.AdamW(model.parameters(), lr=0.01))
    before = flat(trainable(model))
    memory.protect(optimizer, every=1)
    for _ in range(5):
        optimizer.zero_grad()
        accelerator.backward(functional.cross_entropy(prepared(x), y))
        optimizer.step()
    step = moved(model, before)
    assert step.norm() > 1e-3
    assert ((G @ step.double()).abs() <= 1e-4 * G.norm(dim=1) * step.norm()).all()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("way", ["fused", "foreach"])
@pytest.mark.parametrize("every", [1, 3])
def test_fused_and_foreach(kind: str, way: str, every: int) -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    optimizer = getattr(optim, kind)(memory.model.parameters(), lr=0.01, **{way: True})
    memory.protect(optimizer, every)
    train(memory.model, optimizer, x, y, 6)
    assert moved(memory.model, before).norm() > 1e-3
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10


def test_several_as_one_have_the_room_of_one() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(trainable(model))
    body, head = optim.SGD(model[:3].parameters(), lr=0.1), optim.Adam(model[3:].parameters(), lr=0.01)
    protection = memory.protect([body, head], every=1)
    functional.cross_entropy(model(x), y).backward()
    free = flat(trainable(model)).clone()
    body.step()
    free = torch.where(flat(trainable(model)) != before, flat(trainable(model)), free)
    assert (G @ moved(model, before)).abs().max() > 1e-4  # not over before the other has stepped
    body_only = flat(trainable(model))
    head_before = flat(head.param_groups[0]["params"])
    twin = [p.detach().clone().requires_grad_() for p in head.param_groups[0]["params"]]
    for p, q in zip(head.param_groups[0]["params"], twin, strict=True):
        q.grad = p.grad.clone()
    optim.Adam(twin, lr=0.01).step()
    head.step()
    displacement = torch.cat([(body_only - before)[: -len(head_before)], flat(twin) - head_before])
    torch.testing.assert_close(moved(model, before), project_dense(G, displacement), rtol=0, atol=1e-10)
    assert protection.pending == 0
    memory.unprotect([head, body])
    assert memory._protections == []


def test_one_of_several_may_stop() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(trainable(model))
    body, head = optim.SGD(model[:3].parameters(), lr=0.1), optim.SGD(model[3:].parameters(), lr=0.1)
    memory.protect([body, head], every=2)
    train(model, body, x, y, 6)  # only this one
    memory.settle()
    assert moved(model, before).norm() > 1e-3
    assert (G @ moved(model, before)).abs().max() < 1e-10


def in_backward(model: nn.Module, way: str) -> Any:
    if way == "torch":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is of the past
            from torch.distributed.optim import _apply_optimizer_in_backward, _get_in_backward_optimizers
        _apply_optimizer_in_backward(optim.SGD, model.parameters(), {"lr": 0.1})
        return _get_in_backward_optimizers(model)
    optimizers = {p: optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: nn.Parameter) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    return optimizers


@pytest.mark.parametrize("way", ["torch", "hooks"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet", "transformer", "odd"])
def test_optimizers_in_the_backward_pass_move_as_one_outside(name: str, way: str) -> None:
    ends = []
    for inside in (False, True):
        memory, G, x, y = remembered(name)
        model = memory.model.eval()  # transformers have dropout
        before = flat(trainable(model))
        if inside:
            memory.protect(in_backward(model, way), every=1)
            for _ in range(3):
                functional.cross_entropy(model(x), y).backward()
                assert (G @ moved(model, before)).abs().max() < 1e-10
        else:
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            memory.protect(optimizer, every=1)
            train(model, optimizer, x, y, 3)
        ends.append(flat(trainable(model)))
        assert moved(model, before).norm() > 1e-4
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


def test_a_backward_pass_that_raises_leaves_its_part_pending() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(trainable(model))
    memory.protect(in_backward(model, "hooks"), every=1)
    handle = model[0].weight.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        functional.cross_entropy(model(x), y).backward()
    handle.remove()
    assert (G @ moved(model, before)).abs().max() > 1e-4
    functional.cross_entropy(model(x), y).backward()
    assert (G @ moved(model, before)).abs().max() < 1e-10


def test_refusals() -> None:
    memory, _, _, _ = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    loop = SimpleNamespace(zero_grad=None)
    loop.optimizer = loop
    refused = [
        (optim.lr_scheduler.StepLR(optimizer, 2), TypeError, "not StepLR"),
        (loop, TypeError, "not SimpleNamespace"),
        ("sgd", TypeError, "not str"),
        ([], ValueError, "empty list"),
        ([optimizer, Wrapper(optimizer)], ValueError, "a duplicate"),
        ([optimizer, optim.LBFGS(memory.model.parameters())], ValueError, "LBFGS cannot be protected"),
    ]
    for given, kind, message in refused:
        with pytest.raises(kind, match=message):
            memory.protect(given, every=1)
    assert memory._protections == []
    assert isinstance(memory, Memory)
