"""The bound on what rehearsal adds: everyday optimizers learn both tasks, and what is lost is told."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

import ogd
from ogd.memory import ExampleMemory
from ogd.memory.optimizers.gradient_bound import joint_norm

Data = tuple[Tensor, Tensor]


def blobs(seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    centres, y = torch.randn(5, 20, generator=generator) * 1.5, torch.arange(300) % 5
    return centres[y] + torch.randn(300, 20, generator=generator), y


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def learn(model: nn.Module, optimizer: optim.Optimizer, data: Data, *, steps: int = 120, clip: float = 0.0) -> float:
    for _ in range(steps):
        rows = torch.randint(len(data[0]), (32,))
        optimizer.zero_grad()
        cross_entropy(model(data[0][rows]), data[1][rows]).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return accuracy(model, data)


def accuracy(model: nn.Module, data: Data) -> float:
    return float((model(data[0]).argmax(1) == data[1]).double().mean())


EVERYDAY: dict[str, tuple[Callable[[Any], optim.Optimizer], float]] = {
    "momentum 0.05": (lambda ps: optim.SGD(ps, 0.05, momentum=0.9), 0),
    "momentum 0.1": (lambda ps: optim.SGD(ps, 0.1, momentum=0.9), 0),
    "sgd 0.3": (lambda ps: optim.SGD(ps, 0.3), 0),
    "sgd 0.3, clipped": (lambda ps: optim.SGD(ps, 0.3), 0.1),
    "adam 0.01, clipped": (lambda ps: optim.Adam(ps, 0.01), 0.1),
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_optimizers_keep_the_old_task_and_learn_the_new_one(name: str) -> None:
    make, clip = EVERYDAY[name]
    torch.manual_seed(0)
    model, (old, new) = network(), (blobs(1), blobs(2))
    optimizer, memory = make(model.parameters()), ExampleMemory(model, per_task=60)
    rehearsal = memory.protect(optimizer)
    learn(model, optimizer, old, clip=clip)
    memory.remember(old)
    learn(model, optimizer, new, clip=clip)
    assert min(accuracy(model, old), accuracy(model, new)) > 0.9
    assert memory.stats().bounded == (rehearsal.bounded / rehearsal.rehearsals,)
    assert rehearsal.bounded


@pytest.mark.parametrize("bound", [0.25, 1.0, 3])
def test_no_gradient_is_longer_than_the_bound(bound: float) -> None:
    torch.manual_seed(0)
    model = network()
    memory = ExampleMemory(model, per_task=20)
    memory.remember(blobs(1))
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    rehearsal = memory.protect(optimizer, every=1, bound=bound)
    with torch.no_grad():
        model[4].weight.mul_(1e4)  # so that the remembered loss is steep
    longest = 0.0
    for size in (1, 3, 2.9, 2, 0.1, 5):
        if size == 2:  # the first step of another task is bounded as any other
            memory.remember(blobs(2))
        own = [torch.randn_like(p) * size for p in model.parameters()]
        for p, g in zip(model.parameters(), own, strict=True):
            p.grad = g.clone()
        optimizer.step()
        norm = float(joint_norm(own))
        longest = max(norm, 0.9 * longest)
        found = joint_norm([p.grad for p in model.parameters()])
        torch.testing.assert_close(float(found), max(bound * longest, norm), rtol=1e-4, atol=0)
    assert (rehearsal.rehearsals, rehearsal.bounded) == (6, 6)


@pytest.mark.parametrize("momentum", [0, 0.96])
def test_no_step_of_sgd_promises_to_lower_the_remembered_loss_by_more_than_all_of_it(momentum: float) -> None:
    added, rate = [], 50.0
    for bound in (None, 1e9):
        torch.manual_seed(0)
        model = network()
        memory = ExampleMemory(model, per_task=20)
        memory.remember(blobs(1))
        optimizer = optim.SGD(model.parameters(), lr=2 * rate / (1 + 1 / (1 - momentum)), momentum=momentum)
        rehearsal = memory.protect(optimizer, every=1, batch_size=20, bound=bound)
        with torch.no_grad():
            model[4].weight.mul_(3)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        added.append(joint_norm([p.grad - 1 for p in model.parameters()]))
    torch.testing.assert_close(float(rate * added[0] * added[1]), rehearsal.loss, rtol=1e-4, atol=0)
    assert rehearsal.bounded == 1


@pytest.mark.parametrize("own", [None, 0.0, torch.nan])
def test_a_gradient_that_says_nothing_bounds_nothing(own: float | None) -> None:
    model = network()
    memory = ExampleMemory(model, per_task=20)
    memory.remember(blobs(1))
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    rehearsal = memory.protect(optimizer, every=1)
    with torch.no_grad():
        model[4].weight.add_(1)
    for p in model.parameters():
        p.grad = None if own is None else torch.full_like(p, own)
    optimizer.step()
    assert (rehearsal.norms, rehearsal.bounded) == ([0.0], 0)
    if own is None:
        assert joint_norm([p.grad for p in model.parameters()]) > 0


def test_sparse_gradients_count_with_their_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 3))
    x, y = torch.randint(10, (12, 5)), torch.arange(12) % 3
    memory = ExampleMemory(model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    rehearsal = memory.protect(optimizer, every=1)
    cross_entropy(model(x), y).backward()
    dense = [p.grad.to_dense().clone() for p in model.parameters()]
    optimizer.step()
    torch.testing.assert_close(rehearsal.norms[0], float(joint_norm(dense)), rtol=1e-6, atol=0)
    assert model[0].weight.grad.is_sparse


def test_a_saved_memory_resumes_with_its_recent_norm(tmp_path) -> None:
    def begin() -> tuple[nn.Sequential, optim.Optimizer, ExampleMemory]:
        torch.manual_seed(0)
        model = network()
        memory = ExampleMemory(model, per_task=20)
        memory.remember(blobs(1))
        return model, optim.SGD(model.parameters(), lr=0.1), memory

    ends = []
    for interrupted in (False, True):
        model, optimizer, memory = begin()
        rehearsal = memory.protect(optimizer, every=2, bound=0.5)
        torch.manual_seed(1)
        learn(model, optimizer, blobs(2), steps=7)
        if interrupted:
            memory.save(tmp_path / "memory.safetensors")
            memory.unprotect()
            memory = ogd.load(tmp_path / "memory.safetensors", model)
            assert isinstance(memory, ExampleMemory)
            rehearsal = memory.protect(optimizer, every=2, bound=0.5)
            assert rehearsal.since == [1]
            assert rehearsal.norms[0] > 0
        learn(model, optimizer, blobs(2), steps=7)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert rehearsal.bounded
    assert torch.equal(*ends)


@pytest.mark.parametrize("bound", [0, -1, "2", True, float("nan"), float("inf")])
def test_a_bound_must_be_a_number_above_zero(bound: Any) -> None:
    model = network()
    with pytest.raises(ValueError, match=r"bound must be a number above 0, or None"):
        ExampleMemory(model).protect(optim.SGD(model.parameters(), lr=0.1), bound=bound)


def test_a_dead_model_is_told_once_with_its_learning_rate() -> None:
    torch.manual_seed(0)
    model, old, new = network(), blobs(1), blobs(2)
    optimizer, memory = optim.SGD(model.parameters(), lr=0.2, momentum=0.9), ExampleMemory(model, per_task=60)
    memory.protect(optimizer, every=4, alpha=1, bound=None)
    learn(model, optimizer, old)
    memory.remember(old)
    with pytest.warns(UserWarning, match=r"is losing what .* constant outputs.* SGD \(lr = 0\.2\)") as told:
        learn(model, optimizer, new)
    assert len(told) == 1
    assert accuracy(model, new) < 0.5


def test_a_healthy_rehearsal_of_a_weak_model_tells_nothing() -> None:
    torch.manual_seed(0)
    model = network()
    optimizer, memory = optim.Adam(model.parameters(), lr=1e-3), ExampleMemory(model, per_task=60)
    memory.protect(optimizer, every=1)
    noise = [(torch.randn(300, 20), torch.randint(5, (300,))) for _ in range(2)]
    learn(model, optimizer, noise[0], steps=20)
    memory.remember(noise[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(model, optimizer, noise[1], steps=150)
