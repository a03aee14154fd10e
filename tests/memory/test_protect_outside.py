"""Weights that somebody else moves: unprotected optimizers, weights loaded inside a window, steps that raise."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from memory_models import make, moved, remembered, train
from ogd.memory import GradientMemory, load
from ogd.memory.changes.other_weights import largest_overlap
from reference import flat, trainable


def test_an_empty_memory_is_true() -> None:
    model, _, _ = make("mlp")
    memory = GradientMemory(model)
    assert len(memory) == 0
    assert memory


@pytest.mark.parametrize("moment", ["remember", "protect", "save"])
@pytest.mark.parametrize("kind", ["sgd", "fused", "by hand"])
def test_an_unprotected_optimizer_is_noticed_once(kind: str, moment: str, tmp_path) -> None:
    memory, _, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    with memory.protect(optimizer, every=1):
        train(memory.model, optimizer, x, y, 3)
    if kind == "by hand":
        for p in memory.model.parameters():
            p.data -= 0.1 * p.grad
    else:
        train(memory.model, optim.SGD(memory.model.parameters(), lr=0.1, fused=kind == "fused"), x, y, 3)
    moments = {
        "remember": lambda: memory.remember((x, y)),
        "protect": lambda: memory.protect(optim.SGD(memory.model.parameters(), lr=0.1), every=1),
        "save": lambda: memory.save(tmp_path / "memory.safetensors"),
    }
    with pytest.warns(UserWarning, match=r"moved without protection") as caught:
        moments[moment]()
    assert len(caught) == 1
    memory.remember((x, y))  # said once


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("every", [1, 7])
def test_protected_training_is_not_suspected(every: int, dtype: torch.dtype, tmp_path) -> None:
    model, x, y = make("mlp", dtype=dtype)
    memory = GradientMemory(model)
    for task in range(3):
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        memory.protect(optimizer, every)
        _, x, y = make("mlp", n=20, seed=task, dtype=dtype)
        train(model, optimizer, x, y, 50)
        memory.remember((x[:3], y[:3]))
        memory.save(tmp_path / "memory.safetensors")
        model.load_state_dict({name: w.clone() for name, w in model.state_dict().items()})  # the same values
        memory.unprotect()
    again = load(tmp_path / "memory.safetensors", model)
    again.remember((x, y))


def test_what_leaks_is_the_greatest_overlap_with_a_row_of_length_1() -> None:
    memory, G, _, _ = remembered("mlp")
    update = {name: torch.randn_like(p) for name, p in memory.model.named_parameters()}
    u = flat(list(update.values()))
    expected = ((G @ u).abs() / G.norm(dim=1)).max()
    assert abs(largest_overlap(memory.store, update) - expected) < 1e-10
    assert largest_overlap(memory.store, memory.project(update)) < 1e-10
    assert largest_overlap(memory.store, {name: torch.zeros_like(d) for name, d in update.items()}) == 0


@pytest.mark.parametrize("then", ["settle", "step"])
def test_weights_set_inside_a_window_are_taken_as_they_are(then: str) -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=50)
    train(model, optimizer, x, y, 3)
    best = {name: torch.randn_like(w) for name, w in model.named_parameters()}
    with torch.no_grad():
        for name, w in model.named_parameters():
            w.copy_(best[name])
    go_on = memory.settle if then == "settle" else lambda: train(model, optimizer, x, y, 1)
    with pytest.warns(UserWarning, match=r"inside a window of every=50 steps.*the 3 steps before are not projected"):
        go_on()
    assert then == "step" or all(torch.equal(w, best[name]) for name, w in model.named_parameters())
    start = flat([best[name] for name, _ in model.named_parameters()])
    train(model, optimizer, x, y, 2)
    memory.settle()
    assert (G @ moved(model, start)).abs().max() < 1e-9


def test_a_weight_frozen_inside_a_window_is_moved_no_more() -> None:
    memory, _, x, y = remembered("mlp")
    model = memory.model
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=50)
    train(model, optimizer, x, y, 3)
    frozen = next(model.parameters()).requires_grad_(False)
    train(model, optimizer, x, y, 1)  # what was pending of it is projected first
    assert protection.pending == 1
    before = frozen.clone()
    train(model, optimizer, x, y, 2)
    memory.settle()
    assert torch.equal(frozen, before)


def test_one_optimizer_that_steps_in_the_backward_pass_has_whole_steps_in_its_windows() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(trainable(model))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=3)

    def step(_: object) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    pending = []
    for _ in range(7):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        pending.append(protection.pending)
    assert pending == [1, 2, 0, 1, 2, 0, 1]
    memory.settle()
    assert moved(model, before).norm() > 1e-3
    assert (G @ moved(model, before)).abs().max() < 1e-10


@pytest.mark.parametrize("every", [1, 3, "auto"])
def test_a_step_that_raises_before_anything_is_remembered_leaves_nothing_pending(every) -> None:
    remembering, G, x, y = remembered("mlp")
    model = remembering.model
    memory = GradientMemory(model, per_task=None)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every)

    def fails() -> float:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        optimizer.step(fails)
    optimizer.step()
    with pytest.raises(ArithmeticError):
        optimizer.step(fails)
    assert protection.pending == 0
    memory.load_state_dict(remembering.state_dict())
    before = flat(trainable(model))
    train(model, optimizer, x, y, 2)
    memory.settle()
    assert (G @ moved(model, before)).abs().max() < 1e-10


def test_steps_inside_autocast_are_projected_in_full_precision() -> None:
    memory, G, x, y = remembered("mlp", dtype=torch.float32)
    before = flat(trainable(memory.model))
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    with torch.autocast("cpu", torch.bfloat16):
        train(memory.model, optimizer, x, y, 3)
    u = moved(memory.model, before)
    assert u.norm() > 1e-3
    assert ((G @ u).abs() / (G.norm(dim=1) * u.norm())).max() < 1e-4


def test_settling_first_needs_no_warning() -> None:
    memory, _, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=50)
    for _ in range(2):
        train(memory.model, optimizer, x, y, 3)
        memory.settle()
        memory.model.load_state_dict(copy.deepcopy(memory.model.state_dict()))


def test_weights_clipped_after_every_step_cost_one_window_of_one_step() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=5)
    leaks = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(8):
            before = flat(trainable(model))
            train(model, optimizer, x, y, 1)
            leaks.append(float((G @ moved(model, before)).abs().max()))
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-100, 100)
    assert leaks[0] > 1e-3
    assert max(leaks[2:]) < 1e-10
    pending = []
    for _ in range(11):  # nobody clips any more
        train(model, optimizer, x, y, 1)
        pending.append(protection.pending)
    assert max(pending) == 4


class Fails(optim.SGD):
    """Moves half of its parameters, and then raises."""

    fail = False

    @torch.no_grad()
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        for p in params[: len(params) // 2] if self.fail else params:
            p.sub_(0.1 * p.grad)
        if self.fail:
            raise RuntimeError("out of memory")


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("then", ["settle", "remember", "step", "unprotect"])
def test_a_step_that_raises_half_way_is_projected(then: str, every: int) -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(trainable(model))
    optimizer = Fails(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every)
    train(model, optimizer, x, y, 2)
    optimizer.fail = True
    with pytest.raises(RuntimeError, match="out of memory"):
        train(model, optimizer, x, y, 1)
    assert (G @ moved(model, before)).abs().max() > 1e-3
    optimizer.fail = False
    moments = {
        "settle": memory.settle,
        "remember": lambda: memory.remember((x, y)),
        "step": lambda: train(model, optimizer, x, y, 1),
        "unprotect": protection.unprotect,
    }
    moments[then]()
    if every > 1:
        memory.settle()
    assert (G @ moved(model, before)).abs().max() < 1e-10


def test_averages_are_taken_at_settled_weights() -> None:
    drift = {}
    for settled in (False, True):
        memory, G, x, y = remembered("mlp")
        model = memory.model
        before = flat(trainable(model))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        memory.protect(optimizer, every=4)
        average = optim.swa_utils.AveragedModel(model)
        update = memory.settled(average.update_parameters) if settled else average.update_parameters
        for _ in range(5):
            train(model, optimizer, x, y, 3)
            update(model)
        drift[settled] = float((G @ (flat(trainable(average.module)) - before)).abs().max())
    assert drift[True] < 1e-10
    assert drift[False] > 1e-3


def test_an_optimizer_in_a_closure_of_several_groups_still_counts_steps() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(trainable(model))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert protection.pending == 2
    optimizer.step(closure)
    assert protection.pending == 0
    assert isinstance(model, nn.Module)
    assert (G @ moved(model, before)).abs().max() < 1e-10
