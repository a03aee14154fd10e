"""Pending steps are projected before the model is evaluated, saved or loaded, and never inside a training pass."""

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from memory_models import make, remembered, train
from ogd.memory import ExampleMemory, GradientMemory
from reference import flat, trainable

Model = nn.Module


def without_gradients(model: Model, x: Tensor) -> None:
    with torch.no_grad():
        model(x)


def in_inference_mode(model: Model, x: Tensor) -> None:
    with torch.inference_mode():
        model(x)


def in_evaluation_mode(model: Model, x: Tensor) -> None:
    model.eval()(x)


def saved(model: Model, x: Tensor) -> None:
    nn.Sequential(model).state_dict()


READS = (without_gradients, in_inference_mode, in_evaluation_mode, saved)


def pending_steps(every: int = 100) -> tuple[GradientMemory, Tensor, Tensor, Tensor, Tensor, optim.Optimizer]:
    """A memory with three pending steps, its G, data, and the weights before these steps."""
    memory, G, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1, momentum=0.9)
    memory.protect(optimizer, every=every)
    before = flat(trainable(memory.model))
    train(memory.model, optimizer, x, y, 3)
    return memory, G, x, y, before, optimizer


@pytest.mark.parametrize("read", READS)
def test_pending_steps_are_projected_before_the_model_is_read(read: Callable[[Model, Tensor], None]) -> None:
    memory, G, x, _, before, _ = pending_steps()
    assert (G @ (flat(trainable(memory.model)) - before)).abs().max() > 1e-3
    read(memory.model, x)
    assert (G @ (flat(trainable(memory.model)) - before)).abs().max() < 1e-10
    assert memory._protections[0].pending == 0


def test_the_evaluated_outputs_are_those_of_the_projected_weights() -> None:
    memory, _, x, *_ = pending_steps()
    with torch.no_grad():
        seen = memory.model(x)
    memory.settle()
    assert torch.equal(seen, memory.model(x))


def test_training_goes_on_after_each_kind_of_read() -> None:
    memory, G, x, y, before, optimizer = pending_steps()
    for read in READS:
        read(memory.model, x)
        memory.model.train()
        train(memory.model, optimizer, x, y, 3)
        assert memory._protections[0].pending == 3
    memory.unprotect()
    assert (G @ (flat(trainable(memory.model)) - before)).abs().max() < 1e-10


def test_loading_weights_inside_a_window_needs_no_warning() -> None:
    memory, _, x, y, _, optimizer = pending_steps()
    best = {name: value.clone() for name, value in memory.model.state_dict().items()}
    train(memory.model, optimizer, x, y, 3)
    memory.model.load_state_dict(best)
    train(memory.model, optimizer, x, y, 3)


def test_training_passes_do_not_settle_in_either_mode() -> None:
    memory, _, x, y, _, optimizer = pending_steps()
    memory.model.eval()
    train(memory.model, optimizer, x, y, 1)  # the mode has changed, so this looks like an evaluation
    for pending in (2, 3, 4):
        train(memory.model, optimizer, x, y, 1)
        assert memory._protections[0].pending == pending


def test_a_pass_without_gradients_before_the_backward_pass_leaves_the_weights_alone() -> None:
    memory, _, x, y, _, optimizer = pending_steps()
    loss = cross_entropy(memory.model(x), y)
    with torch.no_grad():
        memory.model(x)
    loss.backward()
    assert memory._protections[0].pending == 3
    optimizer.step()
    assert memory._protections[0].pending == 4


def test_a_training_pass_without_a_step_is_said_once() -> None:
    memory, _, x, y, _, _ = pending_steps()
    cross_entropy(memory.model(x), y).backward()  # and the step is left out
    with pytest.warns(UserWarning, match="evaluated while 3 steps were not projected, because the last training pass"):
        memory.model.eval()(x)
    memory.model.state_dict()
    memory.settle()
    assert memory._protections[0].pending == 0


def test_a_closure_that_evaluates_is_left_alone() -> None:
    memory, G, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=100)
    before = flat(trainable(memory.model))

    def closure() -> float:
        optimizer.zero_grad()
        loss = cross_entropy(memory.model(x), y)
        loss.backward()
        with torch.no_grad():
            memory.model(x)
        return loss.item()

    for _ in range(3):
        optimizer.step(closure)
    assert memory._protections[0].pending == 3
    memory.settle()
    assert (G @ (flat(trainable(memory.model)) - before)).abs().max() < 1e-10


def test_evaluation_after_each_step_is_said_to_be_dear() -> None:
    memory, _, x, y, _, optimizer = pending_steps()

    def evaluate_and_train() -> None:
        for _ in range(50):
            without_gradients(memory.model, x)
            train(memory.model, optimizer, x, y, 1)

    with pytest.warns(UserWarning, match="costs as much as every=1") as caught:
        evaluate_and_train()
    assert len(caught) == 1


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x).relu())


def test_a_model_that_is_called_by_its_parts_is_said_once() -> None:
    model = Parts()
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    memory = GradientMemory(model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=10)

    def train_by_parts() -> None:
        for _ in range(25):
            optimizer.zero_grad()
            cross_entropy(model.head(model.body(x).relu()), y).backward()
            optimizer.step()

    with pytest.warns(UserWarning, match="is called in training") as caught:
        train_by_parts()
    assert len(caught) == 1


def test_a_model_of_parts_settles_when_its_first_part_is_called() -> None:
    model = Parts().double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3

    def logits(model: Any, x: Tensor) -> Tensor:
        return model.head(model.body(x).relu())

    memory = GradientMemory(model, logits=logits)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    projection = memory.protect(optimizer, every=10)
    memory.remember((x, y))
    before = logits(model, x).gather(1, y[:, None])
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(logits(model, x), y.roll(1)).backward()
        optimizer.step()
    assert projection.pending == 3
    with torch.no_grad():
        after = logits(model, x).gather(1, y[:, None])
    assert projection.pending == 0
    assert (after - before).abs().max() < 0.1
    memory.unprotect()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_compiled_model_trains_and_the_limit_is_said_once() -> None:
    model = Parts()
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    memory = GradientMemory(model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=10)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.warns(UserWarning, match="compiled, or copied by a wrapper") as caught:
        train(compiled, optimizer, x, y, 25)
    assert len(caught) == 1
    memory.unprotect()


def test_hooks_go_with_the_protection() -> None:
    memory, *_, optimizer = pending_steps()
    hooks = ("_forward_pre_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
    assert all(getattr(memory.model, name) for name in hooks)
    memory.unprotect()
    assert not any(getattr(memory.model, name) for name in hooks)
    memory.protect(optimizer, every=1)  # each step is projected at once: there is nothing to notice
    assert not any(getattr(memory.model, name) for name in hooks)
    memory.unprotect()
    examples = ExampleMemory(memory.model)
    examples.protect(optimizer)
    assert not any(getattr(memory.model, name) for name in hooks[1:])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_of_a_model_have_hooks_that_do_nothing(copied: Callable[[Any], Any]) -> None:
    memory, _, x, y, _, optimizer = pending_steps()
    memory.settle()
    model, twin = copied((memory.model, memory))
    train(memory.model, optimizer, x, y, 3)
    in_evaluation_mode(model, x)
    assert memory._protections[0].pending == 3
    assert not twin._protections
    other = optim.SGD(model.parameters(), lr=0.1)
    twin.protect(other, every=100)
    train(model.train(), other, x, y, 3)
    without_gradients(model, x)
    assert twin._protections[0].pending == 0


def test_a_whole_model_can_be_saved_under_protection() -> None:
    memory, _, x, *_ = pending_steps()
    file = io.BytesIO()
    memory.settle()
    torch.save(memory.model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), memory.model(x))


def test_a_model_does_not_keep_its_memory_alive() -> None:
    memory, _, x, _, _, optimizer = pending_steps()
    model, gone = memory.model, weakref.ref(memory)
    del memory, optimizer
    gc.collect()
    assert gone() is None
    without_gradients(model, x)
    assert not model._forward_pre_hooks


def test_a_functional_pass_inside_a_window() -> None:
    memory, _, x, _, _, _ = pending_steps()
    params = dict(memory.model.named_parameters())
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        torch.vmap(lambda row: torch.func.functional_call(memory.model, params, (row[None],)))(x)
    assert [str(w.message) for w in caught if "torch.func" in str(w.message)]
    assert memory._protections[0].pending == 3


def test_stats_measure_projected_weights() -> None:
    memory, *_ = pending_steps()
    assert memory.stats().drift[0] < 1e-10


def test_other_reads_are_the_user_s() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    projection = memory.protect(optimizer)
    train(model, optimizer, x, y, 3)
    copy.deepcopy(model)
    assert projection.pending == 3
    memory.settle()
    assert projection.pending == 0
