"""Rehearsal in the loops that people write: the weights are those of the remembered loss written by hand."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from memory_models import ResNet, make, mlp, train
from ogd.memory import ExampleMemory, Rehearsal
from reference import flat, trainable


def groups(ps: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """The first layer with the optimizer's own learning rate, the others with a high one."""
    first, *rest = ps
    return [{"params": [first]}, {"params": rest, "lr": 2.0}]


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "groups": lambda ps: optim.SGD(groups(ps), lr=0.01, momentum=0.5),
    "sgd fused": lambda ps: optim.SGD(ps, lr=0.1, fused=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.01),
    "adam fused": lambda ps: optim.Adam(ps, lr=0.01, fused=True),
    "adamw foreach": lambda ps: optim.AdamW(ps, lr=0.01, foreach=True),
}


def started(name: str = "mlp", **options: Any) -> tuple[ExampleMemory, Tensor, Tensor]:
    """A memory of one task, and another task's x and y."""
    model, x, y = make(name, n=12)
    memory = ExampleMemory(model, **options)
    assert isinstance(memory, ExampleMemory)
    memory.remember((x, y))
    _, x, y = make(name, n=8, seed=1)
    return memory, x, y


class ByHand:
    """Adds the gradient of the remembered loss as users would without a hook, with a bound or without."""

    def __init__(self, memory: ExampleMemory, bound: float | None, optimizer: optim.Optimizer) -> None:
        self.memory, self.bound, self.norm, self.optimizer = memory, bound, 0.0, optimizer

    def add(self, weight: float, **options: Any) -> None:
        loss = self.memory.remembered_loss(**options)
        assert loss is not None
        params = trainable(self.memory.model)
        added = flat([weight * g for g in torch.autograd.grad(loss, params)])
        own = flat([p.grad for p in params])
        self.norm = max(float(own.norm()), 0.9 * self.norm)
        scale, too_large = 1.0, 2.0
        if self.bound is not None and (own + added).norm() > self.bound * self.norm:
            scale, too_large = 0.0, 1.0
            for _ in range(80):
                middle = (scale + too_large) / 2
                fits = (own + middle * added).norm() <= self.bound * self.norm
                scale, too_large = (middle, too_large) if fits else (scale, middle)
        parts = dict(zip(params, added.split([p.numel() for p in params]), strict=True))
        if self.bound is not None and isinstance(self.optimizer, optim.SGD):
            promised = 0.0
            for group in self.optimizer.param_groups:
                reach = [group["lr"] * sum(group["momentum"] ** n for n in range(steps)) for steps in (1, 1000)]
                promised += sum(float(parts[p] @ parts[p]) for p in group["params"]) / weight * sum(reach) / 2
            scale = min(scale, float(loss.detach()) / promised)
        for p, a in parts.items():
            p.grad += scale * a.view_as(p)


def plain(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor, extra: Callable[[], None]) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    extra()
    optimizer.step()


def accumulated(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor, extra: Callable[[], None]) -> None:
    optimizer.zero_grad()
    for part in (slice(0, 3), slice(3, 8)):
        functional.cross_entropy(model(x[part]), y[part], reduction="sum").backward()
    extra()
    optimizer.step()


def clipped(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor, extra: Callable[[], None]) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 0.01)
    extra()
    optimizer.step()


def closed(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor, extra: Callable[[], None]) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        extra()
        return loss.detach()

    assert isinstance(optimizer.step(closure), Tensor)


def closed_by_name(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor, extra: Callable[[], None]) -> None:
    closed(Named(optimizer), model, x, y, extra)


class Named:
    """An optimizer whose closure is given by name."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.zero_grad, self.step = optimizer.zero_grad, lambda closure: optimizer.step(closure=closure)


def scaled(optimizer: Any, model: nn.Module, x: Tensor, y: Tensor, extra: Callable[[], None]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(functional.cross_entropy(model(x), y)).backward()
    for p in model.parameters() if extra is not nothing else ():  # by hand: in the scale of the others
        p.grad.div_(1024.0)
    extra()
    for p in model.parameters() if extra is not nothing else ():
        p.grad.mul_(1024.0)
    scaler.step(optimizer)
    scaler.update()


def nothing() -> None:
    pass


LOOPS = {f.__name__: f for f in (plain, accumulated, clipped, closed, closed_by_name, scaled)}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("bound", [None, 1.01])
def test_every_loop_and_optimizer_is_as_by_hand(loop: str, kind: str, bound: float | None) -> None:
    memory, x, y = started()
    hand = copy.deepcopy(memory)
    optimizer, other = (OPTIMIZERS[kind](m.model.parameters()) for m in (memory, hand))
    rehearsal, by_hand = (
        memory.protect(optimizer, every=2, batch_size=5, alpha=0.5, bound=bound),
        ByHand(hand, bound, other),
    )
    for step in range(1, 7):
        LOOPS[loop](optimizer, memory.model, x, y, nothing)
        extra = (lambda: by_hand.add(2, batch_size=5, alpha=0.5)) if step % 2 == 0 else lambda: None
        LOOPS[loop](other, hand.model, x, y, extra)
    torch.testing.assert_close(flat(trainable(memory.model)), flat(trainable(hand.model)), rtol=1e-9, atol=1e-9)
    assert memory.draws == hand.draws == 3
    assert bool(rehearsal.bounded) is (bound is not None)


def test_a_skipped_step_of_a_scaler_changes_nothing() -> None:
    memory, x, y = started()
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    scaler = torch.amp.GradScaler("cpu")
    before = flat(trainable(memory.model))
    scaler.scale(functional.cross_entropy(memory.model(x), y) * torch.inf).backward()
    scaler.step(optimizer)
    assert torch.equal(flat(trainable(memory.model)), before)
    assert memory.draws == 0


def test_several_optimizers_each_rehearse_their_own_parameters() -> None:
    memory, x, y = started()
    model = memory.model
    both = [optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 4)]
    rehearsal = memory.protect(both, every=2)
    assert isinstance(rehearsal, Rehearsal)
    functional.cross_entropy(model(x), y).backward()
    before = [p.grad.clone() for p in model.parameters()]
    for step in range(4):
        both[step % 2].step()
    changed = [not torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True)]
    assert changed == [True, True, False, False, True, True]
    assert (memory.draws, rehearsal.since) == (2, [0, 0])
    memory.unprotect(both[0])
    assert not rehearsal.active


def test_frozen_unused_foreign_and_later_parameters() -> None:
    memory, _, _ = started()
    model = memory.model
    foreign = nn.Parameter(torch.ones(3))
    model[0].weight.requires_grad_(False)
    optimizer = optim.SGD([*model[:3].parameters(), foreign], lr=0.1)
    memory.protect(optimizer, every=1)
    optimizer.step()
    assert model[0].weight.grad is foreign.grad is None
    assert model[0].bias.grad is not None  # although the loop gave it none
    assert model[4].weight.grad is None
    optimizer.add_param_group({"params": model[4].parameters()})
    optimizer.step()
    assert model[4].weight.grad is not None
    for p in model.parameters():
        p.requires_grad_(False)
    optimizer.zero_grad()
    optimizer.step()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("sparse_optimizer", [False, True])
def test_sparse_gradients_stay_sparse(sparse_optimizer: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3)).double()
    twin = copy.deepcopy(model)
    twin[0].sparse = False
    x, y = torch.randint(20, (6, 3)), torch.randint(3, (6,))
    for m in (model, twin):
        memory = ExampleMemory(m)
        memory.remember((x, y))
        if sparse_optimizer and m is model:
            both = [optim.SparseAdam(m[0].parameters(), lr=0.1), optim.SGD(m[2].parameters(), lr=0.1)]
            memory.protect(both, every=1)
            train(m, both[0], x, y, 2)
            assert m[0].weight.grad.is_sparse
            return
        optimizer = optim.SGD(m.parameters(), lr=0.1)
        memory.protect(optimizer, every=1)
        train(m, optimizer, x, y, 3)
        optimizer.zero_grad()
        optimizer.step()  # without a gradient of the loop's
    torch.testing.assert_close(flat(trainable(model)), flat(trainable(twin)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.filterwarnings("ignore:the buffers of")
def test_modes_buffers_and_the_random_state_are_left_alone(training: bool, frozen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(ResNet(), nn.Dropout(0.5), Noisy()).double()
    memory = ExampleMemory(model, freeze_buffers=frozen)
    memory.remember((torch.randn(6, 2, 5, 5).double(), torch.randint(4, (6,))))
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    memory.protect(optimizer, every=1)
    model.train(training)
    model[0].norm.eval()
    modes = [m.training for m in model.modules()]
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    optimizer.step()
    memory.stats()
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-5 * torch.randn_like(x)


def test_weights_that_diverged_are_told() -> None:
    memory, x, y = started()
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(memory.model, optimizer, x, y, 1)
    with torch.no_grad():
        memory.model[0].weight[0, 0] = torch.nan
    with pytest.raises(RuntimeError, match=r"not finite .* have the weights diverged"):
        optimizer.step()


def test_two_losses_of_a_model_that_changes_its_input_in_place() -> None:
    class InPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.sub_(0.5))

    memory = ExampleMemory(InPlace(4, 3))
    memory.remember((torch.randn(20, 4), torch.randint(3, (20,))))
    losses = [memory.remembered_loss(4) for _ in range(2)]
    torch.stack([loss for loss in losses if loss is not None]).sum().backward()


def test_float16_weights_get_the_gradient_of_a_mean() -> None:
    model = nn.Linear(4, 3).half()
    memory = ExampleMemory(model, per_task=600)
    memory.remember((100 * torch.randn(600, 4), torch.randint(3, (600,))))
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    memory.protect(optimizer, every=1, batch_size=512)
    with torch.no_grad():
        model.weight.mul_(1.3)
    optimizer.step()
    assert model.weight.grad is not None
    assert model.weight.grad.isfinite().all()


def test_a_step_inside_a_backward_pass_is_refused() -> None:
    memory, x, y = started()
    p = memory.model[4].bias
    optimizer = optim.SGD([p], lr=0.1)
    memory.protect(optimizer, every=1)
    p.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(RuntimeError, match="cannot run inside a backward pass"):
        functional.cross_entropy(memory.model(x), y).backward()


def test_a_compiled_model_and_one_cast_later() -> None:
    memory, x, y = started()
    compiled = ExampleMemory(torch.compile(memory.model, backend="eager"))
    assert isinstance(compiled, ExampleMemory)
    compiled.load_state_dict(memory.state_dict())
    one, other = memory.remembered_loss(5), compiled.remembered_loss(5)
    assert one is not None
    torch.testing.assert_close(one, other)
    memory.model.bfloat16()
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    rehearsal = memory.protect(optimizer, every=1)
    train(memory.model, optimizer, x.bfloat16(), y, 2)
    assert isinstance(rehearsal, Rehearsal)
    assert rehearsal.loss is not None
    assert 0 < rehearsal.loss < 10
    assert memory.model[0].weight.grad.dtype == torch.bfloat16
    assert 0 < memory.stats().drift[0] < 1


def test_rehearsal_remembers_where_training_forgets() -> None:
    torch.manual_seed(0)
    x, directions = torch.randn(400, 12), torch.randn(2, 12, 4)
    tasks = [(x, (x @ d).argmax(1)) for d in directions]
    right = {}
    for protect in (True, False):
        torch.manual_seed(0)
        model = mlp()
        memory = ExampleMemory(model)
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        if protect:
            memory.protect(optimizer)
        train(model, optimizer, *tasks[0], 150)
        memory.remember(tasks[0])
        train(model, optimizer, *tasks[1], 50)
        right[protect] = float((model(x).argmax(1) == tasks[0][1]).float().mean())
    assert right[True] > right[False] + 0.1


def test_a_wrapper_that_shares_the_hooks_rehearses_once() -> None:
    class Sharing(optim.SGD):
        def __init__(self, optimizer: Any) -> None:
            self.__dict__ = dict(vars(optimizer))
            self.optimizer = optimizer

        def step(self) -> None:  # type: ignore[override]
            for hook in self._optimizer_step_pre_hooks.values():
                hook(self, (self,), {})
            self.optimizer.step()

    memory, x, y = started()
    optimizer = Sharing(optim.SGD(memory.model.parameters(), lr=0.1))
    memory.protect(optimizer, every=1)
    train(memory.model, optimizer, x, y, 3)
    assert memory.draws == 3
