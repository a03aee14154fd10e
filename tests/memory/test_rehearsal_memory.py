"""Rehearsal takes no more memory at a time than the user's own training pass, and gives the same gradient."""

import copy
import gc
import pickle
from typing import cast

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.checkpoint import checkpoint

from ogd.memory import ExampleMemory
from ogd.memory.examples import rehearsal_gradient


class Noting(nn.Module):
    """A model that notes its batches, and whether it runs under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.passes: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append((len(x), torch.is_autocast_enabled("cpu")))
        return self.body(x)


def rehearsed(batch: int | None, *, half: torch.dtype | None = None) -> tuple[ExampleMemory, optim.Optimizer, Noting]:
    torch.manual_seed(0)
    model = Noting()
    memory = ExampleMemory(model, per_task=None)
    memory.remember((torch.randn(20, 6), torch.arange(20) % 4))
    optimizer = optim.SGD(model.parameters(), lr=0)
    memory.protect(optimizer, every=1, batch_size=16, bound=None)
    with torch.no_grad():
        model.body.weight.add_(0.1)
    if batch is not None:
        with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
            loss = model(torch.randn(batch, 6)).sum()
        (0 * loss).backward()
    model.passes.clear()
    optimizer.step()
    return memory, optimizer, model


def test_micro_batches_add_up_to_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, whole = rehearsed(None)
    assert whole.passes == [(16, False)]
    assert rehearsed(5)[2].passes == [(16, False)]  # small as it is
    monkeypatch.setattr(rehearsal_gradient, "SMALL", 0)
    for batch, sizes in ((5, [5, 5, 5, 1]), (16, [16]), (40, [16])):
        memory, _, model = rehearsed(batch)
        assert model.passes == [(n, False) for n in sizes]
        for p, q in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        assert memory.draws == 1


@pytest.mark.parametrize(("half", "followed"), [(torch.bfloat16, True), (torch.float16, False), (None, False)])
def test_autocast_to_bfloat16_is_followed(half: torch.dtype | None, followed: bool) -> None:
    assert rehearsed(4, half=half)[2].passes == [(16, followed)]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.body, self.reentrant = nn.Linear(6, 6), nn.Linear(6, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).tanh()
        return cast(Tensor, checkpoint(self.body, h, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's, without gradients
def test_reentrant_checkpointing_gives_the_same_gradient() -> None:
    """It refuses `autograd.grad`; hooks and gradients of the user's stay as they were."""
    gradients, heard = [], list[int]()
    for reentrant in (True, False):
        torch.manual_seed(0)
        model = Checkpointed(reentrant)
        memory = ExampleMemory(model, per_task=None)
        memory.remember((torch.randn(20, 6), torch.arange(20) % 4))
        optimizer = optim.SGD(model.parameters(), lr=0)
        memory.protect(optimizer, every=1, bound=None)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(3, 6)).sum().backward()
            handle = model.stem.weight.register_post_accumulate_grad_hook(lambda p: heard.append(1))
            optimizer.step()
            handle.remove()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients)
    assert not heard


def test_evaluation_is_no_training_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal_gradient, "SMALL", 0)
    _, optimizer, model = rehearsed(8)
    with torch.no_grad():
        model(torch.randn(2, 6))
    model.eval()
    model(torch.randn(2, 6))
    model.passes.clear()
    optimizer.step()
    assert [n for n, _ in model.passes] == [8, 8]


def test_the_hook_ends_with_the_protection_and_does_nothing_in_copies() -> None:
    memory, _, model = rehearsed(8)
    assert len(model._forward_pre_hooks) == 1
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.randn(2, 6))
    assert memory._training_pass.numbers == 8 * 6
    assert copy.deepcopy(memory)._training_pass.numbers == 8 * 6
    memory.unprotect()
    assert not model._forward_pre_hooks
    memory, optimizer, model = rehearsed(8)
    del memory, optimizer
    gc.collect()
    model(torch.randn(2, 6))
    assert not model._forward_pre_hooks
