"""Modules and parameters as PyTorch's own iterators give them."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from ogd.memory.model.eval_mode import eval_mode
from ogd.memory.model.parameters import first_parameter, modules_of


class Box(nn.Module):
    def __init__(self, *inside: nn.Module | None) -> None:
        super().__init__()
        for i, module in enumerate(inside):
            self.register_module(str(i), module)


class Hiding(nn.Module):
    """Gives a module in modules() that is not among its children."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 4)
        object.__setattr__(self, "hidden", nn.Dropout())

    def modules(self) -> Iterator[nn.Module]:
        yield from super().modules()
        yield self.hidden  # type: ignore[misc]


class Naming(Hiding):
    modules = nn.Module.modules

    def named_modules(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        yield from super().named_modules(*args, **kwargs)
        yield "hidden", self.hidden


class Backwards(nn.Linear):
    """Gives its parameters in another order."""

    def named_parameters(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        yield from reversed(list(super().named_parameters(*args, **kwargs)))


class Fewer(nn.Linear):
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield self.bias


shared = nn.Linear(2, 2)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "alone": lambda: nn.Linear(2, 1),
    "nothing": nn.Identity,
    "none": lambda: Box(None, nn.ReLU(), None),
    "shared": lambda: Box(Box(Box(shared), nn.ReLU()), shared, Box(shared)),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 8),
    "lstm": lambda: nn.Sequential(nn.LSTM(3, 3), nn.ModuleDict({"a": nn.ParameterList([torch.ones(1)])})),
    "scripted": lambda: Box(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))),
    "backwards": lambda: Backwards(2, 2),
    "fewer": lambda: Fewer(2, 2),
    "hiding": Hiding,
    "naming": lambda: Box(nn.ReLU(), Naming(), nn.Tanh()),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", MODELS)
def test_as_pytorch_gives_them(name: str) -> None:
    model = MODELS[name]()
    assert [id(module) for module in modules_of(model)] == [id(module) for module in model.modules()]
    found, first = first_parameter(model), next(iter(model.parameters()), None)
    assert (found is None) == (first is None)
    assert found is first or torch.equal(found, first)  # type: ignore[arg-type]  # scripted ones are made anew


def test_a_shared_module_with_a_train_of_its_own_is_put_back() -> None:
    class Noting(nn.Module):
        side = False

        def train(self, mode: bool = True) -> "Noting":
            super().train(mode)
            self.side = mode
            return self

    inner = Noting()
    box = Box(inner)
    root = Box(Box(box), inner)
    root.train()
    box.eval()
    inner.train()
    with eval_mode(root):
        assert not inner.training
    assert (inner.training, inner.side, box.training) == (True, True, False)


def test_a_mode_that_train_does_not_set_is_put_back() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> "Frozen":
            return super().train(False)

    model = nn.Sequential(nn.Linear(2, 3), Frozen(3), nn.Dropout())
    for modes in itertools.product((True, False), repeat=len(list(model.modules()))):
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
        assert tuple(module.training for module in model.modules()) == modes
