"""Optimizers that move weights elsewhere than in step() are protected all the same, or noticed."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from memory_models import make, moved, remembered, train
from ogd.memory import ExampleMemory, GradientMemory, Memory
from ogd.memory.loading import KINDS
from ogd.memory.optimizers.protectable import inner_optimizers
from reference import flat, trainable


class Sharpness(optim.Optimizer):
    """Sharpness-aware minimisation: step with the gradient at weights that were moved up the slope, and put back."""

    def __init__(self, params: Any, base: Any = optim.SGD, restore: str = "data", **options: Any) -> None:
        super().__init__(params, options)
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups, self.restore = self.base_optimizer.param_groups, restore

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.detach().clone()
            p.add_(0.05 * p.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            if self.restore == "data":
                p.data = self.state[p]["old"]
            else:
                p.copy_(self.state[p]["old"])
        self.base_optimizer.step()

    def step(self, closure: Callable[[], Tensor] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


class Hidden(Sharpness):
    """The same without an optimizer inside."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        del self.base_optimizer

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"] - 0.1 * p.grad)


class Averaging(optim.SGD):
    """As schedule-free optimizers do: the model holds one sequence of weights, and `eval` adds some of another."""

    @torch.no_grad()
    def train(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.sub_(self.state[p].pop("added", 0))

    @torch.no_grad()
    def eval(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["added"] = -0.1 * p.grad
            p.add_(self.state[p]["added"])


def by_parts(model: nn.Module, optimizer: Sharpness, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.first_step()
        functional.cross_entropy(model(x), y).backward()
        optimizer.second_step()


def by_closure(model: nn.Module, optimizer: Sharpness, x: Tensor, y: Tensor, steps: int) -> None:
    def closure() -> Tensor:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.zero_grad()
        closure()
        optimizer.step(closure)


LOOPS = {"parts": by_parts, "closure": by_closure}


@pytest.mark.parametrize("base", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("restore", ["data", "copy"])
@pytest.mark.parametrize("loop", LOOPS)
def test_the_steps_of_an_inner_optimizer_are_projected(loop: str, restore: str, base: Any) -> None:
    ends = []
    for _ in LOOPS:
        memory, G, x, y = remembered("mlp")
        before = flat(trainable(memory.model))
        optimizer = Sharpness(memory.model.parameters(), base, restore, lr=0.05)
        memory.protect(optimizer, every=1)
        LOOPS[loop](memory.model, optimizer, x, y, 5)
        ends.append(flat(trainable(memory.model)))
        assert moved(memory.model, before).norm() > 1e-2
        assert (G @ moved(memory.model, before)).abs().max() < 1e-10
        assert max(memory.stats().drift) < 1e-10
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_step_inside_another_rehearses_once(loop: str, every: int) -> None:
    model, x, y = make("mlp")
    memory = ExampleMemory(model)
    memory.remember((x, y))
    optimizer = Sharpness(model.parameters(), lr=0.05)
    memory.protect(optimizer, every)
    LOOPS[loop](model, optimizer, x, y.roll(1), 4)
    assert memory.draws == 4 // every  # type: ignore[attr-defined]


def test_an_inner_optimizer_is_protected_with_the_outer_one() -> None:
    memory, _, x, y = remembered("mlp")
    optimizer = Sharpness(memory.model.parameters(), lr=0.05)
    inner = optimizer.base_optimizer
    assert inner_optimizers(optimizer) == [inner]
    assert inner_optimizers(inner) == []
    for again in (inner, optimizer):
        memory.protect(optimizer, every=1)
        with pytest.raises(ValueError, match="protected already"):
            memory.protect(again, every=1)
        memory.unprotect(again)
    with pytest.raises(ValueError, match="a duplicate"):
        memory.protect([optimizer, inner], every=1)
    with pytest.raises(ValueError, match="LBFGS cannot be protected"):
        memory.protect(Sharpness(memory.model.parameters(), optim.LBFGS, lr=0.05))
    free = flat(trainable(memory.model))
    by_parts(memory.model, optimizer, x, y, 1)
    assert moved(memory.model, free).norm() > 1e-3
    assert not optimizer._optimizer_step_pre_hooks
    assert not inner._optimizer_step_pre_hooks


def test_an_optimizer_of_other_parameters_inside_is_left_alone() -> None:
    memory, _, _, _ = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    other = optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    optimizer.teacher, other.pupil = other, optimizer  # type: ignore[attr-defined]
    assert inner_optimizers(optimizer) == []
    memory.protect(optimizer, every=1)
    assert not other._optimizer_step_pre_hooks


def test_a_longer_window_ends_where_weights_are_perturbed() -> None:
    memory, G, x, y = remembered("mlp")
    optimizer = Sharpness(memory.model.parameters(), lr=0.05)
    memory.protect(optimizer, every=5)
    with pytest.warns(UserWarning, match="inside a window of every=5 steps"):
        by_parts(memory.model, optimizer, x, y, 2)
    before = flat(trainable(memory.model))
    by_parts(memory.model, optimizer, x, y, 4)
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10


def test_schedule_free_optimizers_are_warned_of() -> None:
    memory, _, x, y = remembered("mlp")
    optimizer = Averaging(memory.model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"Averaging moves the weights in eval\(\) and train\(\).*loops\.md") as caught:
        memory.protect(optimizer, every=1)
    assert len(caught) == 1
    train(memory.model, optimizer, x, y, 2)
    optimizer.eval()
    assert memory.stats().drift[0] > 1e-3  # said once
    examples = ExampleMemory(memory.model)
    examples.protect(Averaging(memory.model.parameters(), lr=0.1))


MOMENTS: dict[str, Callable[[Memory, Path], Any]] = {
    "stats": lambda memory, _: memory.stats(),
    "settle": lambda memory, _: memory.settle(),
    "save": lambda memory, path: memory.save(path / "m.safetensors"),
    "unprotect": lambda memory, _: memory.unprotect(),
    "end": lambda memory, _: memory._protections[0].unprotect(),
    "forget": lambda memory, _: memory.forget(0),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("keep", ["gradients", "examples"])
@pytest.mark.parametrize("every", [1, 5])
def test_steps_that_no_hook_has_seen_are_noticed_once(every: int, keep: Any, moment: str, tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = KINDS[keep](model)
    memory.remember((x, y))
    optimizer = Hidden(model.parameters(), lr=0.1)
    memory.protect(optimizer, every)
    by_parts(model, optimizer, x, y.roll(1), 5)
    with pytest.warns(UserWarning, match=r"outside its step\(\) \(docs/loops\.md\)") as caught:
        MOMENTS[moment](memory, tmp_path)
    assert len(caught) == 1
    memory.remember((x, y))
    by_parts(model, optimizer, x, y, 2)
    memory.stats()


def test_an_unprotected_optimizer_of_the_same_weights_is_noticed_while_the_other_trains() -> None:
    memory, _, x, y = remembered("mlp")
    optimizer, other = (optim.SGD(memory.model.parameters(), lr=0.1) for _ in range(2))
    memory.protect(optimizer, every=1)

    def both(steps: int) -> None:
        for _ in range(steps):
            train(memory.model, optimizer, x, y, 1)
            train(memory.model, other, x, y, 1)

    with pytest.warns(UserWarning, match="moved without protection"):
        both(3)
    both(6)  # said once


def clip(memory: Memory, optimizer: optim.Optimizer) -> None:
    with torch.no_grad():
        for p in memory.model.parameters():
            p.clamp_(-100, 100)


def swap(memory: Memory, optimizer: optim.Optimizer) -> None:
    """Evaluate other weights, and put the present ones back."""
    memory.settle()
    own = copy.deepcopy(memory.model.state_dict())
    memory.model.load_state_dict({name: torch.zeros_like(w) for name, w in own.items()})
    memory.model.load_state_dict(own)


def reload(memory: Memory, optimizer: optim.Optimizer) -> None:
    memory.settle()
    memory.model.load_state_dict(copy.deepcopy(memory.model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def skipped(memory: Memory, optimizer: optim.Optimizer) -> None:
    """What GradScaler does with gradients that are not finite: no step."""
    memory.model.zero_grad()


def frozen(memory: Memory, optimizer: optim.Optimizer) -> None:
    first = next(memory.model.parameters())
    first.requires_grad_(not first.requires_grad)


def still(memory: Memory, optimizer: optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.0 if optimizer.param_groups[0]["lr"] else 0.05


@pytest.mark.parametrize("keep", ["gradients", "examples"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("between", [clip, swap, reload, skipped, frozen, still])
def test_what_is_usual_in_training_is_not_suspected(between: Any, every: int, keep: Any, tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = KINDS[keep](model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    memory.protect(optimizer, every)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "something else has set the weights inside a window")
        for _ in range(6):
            train(model, optimizer, x, y.roll(1), every)
            between(memory, optimizer)
            memory.stats()
            memory.settle()
            memory.save(tmp_path / "m.safetensors")
        memory.remember((x, y))
        memory.unprotect()


@pytest.mark.parametrize("lr", [1e-6, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_steps_as_small_as_their_rounding_are_not_suspected(dtype: torch.dtype, lr: float) -> None:
    for seed in range(5):
        model, x, y = make("mlp", seed=seed, dtype=dtype)
        memory = GradientMemory(model)
        optimizer = optim.SGD(model.parameters(), lr=lr)
        memory.protect(optimizer, every=1)
        for _ in range(4):
            memory.remember((x[:2], y[:2]))
            train(model, optimizer, x, y.roll(1), 4)


def test_outputs_of_earlier_tasks_may_have_moved() -> None:
    model, x, y = make("mlp", n=12)
    memory = ExampleMemory(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer)
    memory.remember((x[:6], y[:6]))
    train(model, optimizer, x, y.roll(1), 20)
    assert memory.stats().drift[0] > 0.05
    memory.remember((x[6:], y[6:]))
    memory.unprotect()
    memory.forget(-1)
    memory.protect(optimizer)


def test_a_gradient_that_protects_nothing_is_not_looked_at() -> None:
    model = nn.Linear(2, 2, bias=False).double()
    memory = GradientMemory(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    memory.remember((torch.tensor([[1.0, 0], [0, 1e-14]]).double(), torch.zeros(2).long()))
    model(torch.ones(1, 2).double()).sum().backward()
    with pytest.warns(UserWarning, match="1 of 2 stored gradients protect nothing"):
        optimizer.step()
    memory.stats()


@pytest.mark.parametrize("keep", ["gradients", "examples"])
def test_steps_before_the_last_task_do_not_excuse_what_moves_after_it(keep: str) -> None:
    model, x, y = make("mlp")
    memory = KINDS[keep](model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    memory.remember((x, y))
    train(model, optimizer, x, y.roll(1), 3)
    memory.remember((x, y))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    with pytest.warns(UserWarning, match="moved without protection"):
        memory.settle()
