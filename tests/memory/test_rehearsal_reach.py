"""Rehearsal has a gradient, or somebody says that it has none: outputs must depend on what is protected and trained."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from ogd.memory import ExampleMemory, load

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


class WithoutGradients(Net):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Inference(Net):
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Routed(Net):
    """Inputs that begin with a negative number go another way, where nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        away = x[:, 0] < 0
        z = self.fixed(x)
        return torch.where(away.unsqueeze(1), z, super().forward(x)) if not away.all() else z


def frozen(*parts: str) -> Net:
    net = Net()
    for part in parts:
        net.get_submodule(part).requires_grad_(False)
    return net


def teacher(model: nn.Module, x: Tensor) -> Tensor:
    return TEACHER(x)  # type: ignore[no-any-return]


TEACHER = Net()
UNREACHED: dict[str, tuple[Callable[[], Net], dict[str, Any]]] = {
    "detached by logits=": (Net, {"logits": lambda m, x: m(x).detach()}),
    "computed without gradients": (Net, {"logits": torch.no_grad()(lambda m, x: m(x))}),
    "another model": (Net, {"logits": teacher}),
    "a copy": (Net, {"logits": lambda m, x: copy.deepcopy(m)(x)}),
    "the input alone": (Net, {"logits": lambda m, x: x[:, :3] * 2}),
    "no_grad in forward": (WithoutGradients, {}),
    "inference mode in forward": (Inference, {}),
    "detached in forward": (Detached, {}),
    "frozen parts alone": (lambda: frozen("body", "head"), {}),
    "other parameters": (Net, {"params": ["other"]}),
    "a part that is not protected": (Net, {"params": ["head"], "logits": lambda m, x: m.body(x)}),
}
REACHED: dict[str, tuple[Callable[[], Net], dict[str, Any]]] = {
    "everything": (Net, {}),
    "a frozen body": (lambda: frozen("body"), {}),
    "a frozen head": (lambda: frozen("head"), {}),
    "one parameter": (Net, {"params": ["head.bias"]}),
    "features": (Net, {"logits": lambda m, x: m.body(x)}),
    "some examples": (Routed, {}),
}


def memory_of(make: Callable[[], Net], options: dict[str, Any]) -> ExampleMemory:
    torch.manual_seed(0)
    memory = ExampleMemory(make(), **options)
    assert isinstance(memory, ExampleMemory)
    return memory


@pytest.mark.parametrize("name", UNREACHED)
def test_outputs_that_cannot_be_rehearsed_are_refused(name: str) -> None:
    memory = memory_of(*UNREACHED[name])
    for call in (
        lambda: memory.remember((X, Y)),
        lambda: memory.observe(X, Y),
        lambda: memory.explain((X, Y)),
    ):
        with pytest.raises(ValueError, match="outputs do not depend on any protected parameter that is trainable"):
            call()
    assert (len(memory), memory.task_sizes, memory.observed) == (0, (), 0)
    assert memory.model.training


@pytest.mark.parametrize("name", REACHED)
def test_outputs_that_depend_on_any_part_are_rehearsed(name: str) -> None:
    memory = memory_of(*REACHED[name])
    x = X[X[:, 0].argsort()]  # those that are routed away come first
    memory.remember((x, None))
    optimizer = SGD(memory.model.parameters(), lr=0.1)
    rehearsal = memory.protect(optimizer, every=1)
    optimizer.zero_grad()
    with torch.no_grad():
        memory.model.head.bias += 1.0
        memory.model.body.bias += 1.0
    optimizer.step()
    assert rehearsal.loss > 0.01
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in memory._parameters.trainable().values())
    assert all(p.grad is None for n, p in memory._parameters.named().items() if n not in memory._parameters.trainable())


def test_a_task_of_its_own_logits_is_looked_at_too() -> None:
    memory = memory_of(Net, {})
    memory.remember((X, Y))
    before = memory.examples
    with pytest.raises(ValueError, match="do not depend on any protected parameter"):
        memory.remember((X, Y), logits=lambda m, x: m(x).detach())
    assert memory.examples is before


def test_a_frozen_model_is_remembered_and_protected_once_it_is_unfrozen() -> None:
    memory = memory_of(lambda: frozen("body", "head", "other"), {})
    memory.remember((X, Y))
    assert memory.task_sizes == (20,)
    model = memory.model
    optimizer = SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    optimizer.step()  # nothing to do
    model.requires_grad_(True)
    nn.functional.cross_entropy(model(-X), Y.roll(1)).backward()
    before = model.body.weight.grad.clone()
    optimizer.step()
    assert not torch.equal(model.body.weight.grad, before)


def test_frozen_models_without_a_gradient_are_told_when_they_are_trained(tmp_path: Path) -> None:
    memory = memory_of(lambda: frozen("body", "head", "other"), {"logits": lambda m, x: m(x).detach()})
    memory.remember((X, Y))
    memory.save(tmp_path / "m")
    memory.model.requires_grad_(True)
    for other in (memory, load(tmp_path / "m", memory.model, logits=memory.logits)):
        optimizer = SGD(other.model.parameters(), lr=0.1)
        other.protect(optimizer, every=1)
        with pytest.raises(ValueError, match="remembered outputs do not depend on any trainable parameter"):
            optimizer.step()
        other.unprotect()
        with pytest.raises(ValueError, match="remembered outputs do not depend"):
            other.remembered_loss(5)


def test_one_example_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogd.memory.examples.pairs.CHUNK_SIZE", 4)
    memory = memory_of(Net, {})
    graphs = []
    memory.model.register_forward_hook(lambda _, args, z: graphs.append((len(z), z.requires_grad)))
    memory.remember((X, Y))
    assert graphs == [(1, True), *[(4, False)] * 5]
