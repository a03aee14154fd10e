"""What could hide a gradient from the memory is read rightly or refused, never taken for zero."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memory_models import make, rows
from ogd.memory import GradientMemory
from reference import logit_gradients


class Checkpointed(nn.Module):
    """`body` is called inside a checkpoint and, if shared, also behind it, where the graph shows it."""

    def __init__(self, reentrant: bool, shared: bool):
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(12, 9), nn.Linear(9, 9), nn.Linear(9, 4)
        self.reentrant, self.shared = reentrant, shared

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.body, self.stem(x).tanh(), use_reentrant=self.reentrant).tanh()
        return self.head(self.body(h).tanh() if self.shared else h)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("params", [None, ["body"], ["body", "head"]])
def test_checkpointing_is_read_or_refused(params: list[str] | None, shared: bool) -> None:
    _, x, y = make("mlp")
    model = Checkpointed(reentrant=True, shared=shared).double()
    functional.cross_entropy(model(x), y).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    fired: list[Tensor] = []
    model.body.weight.register_post_accumulate_grad_hook(fired.append)
    with pytest.raises(ValueError, match=r"body\.weight, body\.bias.*use_reentrant=False"):
        GradientMemory(model, params=params).remember((x, y))
    assert not fired
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    model.body.weight.sum().backward()
    assert len(fired) == 1
    model.reentrant = False
    memory = GradientMemory(model)
    memory.remember((x, y))
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y))


class Aside(torch.autograd.Function):
    """The identity, whose backward also gives a tenth of its gradient to a weight, aside from the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter) -> Tensor:
        ctx.weight = weight
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        ctx.weight.backward(0.1 * d.mean() * torch.ones_like(ctx.weight))
        return d, None


@pytest.mark.parametrize("scale", [1e-9, 1, 1e9])
def test_what_is_hidden_in_part_is_refused_however_large_the_gradients_are(scale: float) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, logits=lambda m, x: scale * Aside.apply(m(x), m[0].weight))
    with pytest.raises(ValueError, match=r"gradients of 0\.weight are hidden"):
        memory.remember((x, y))


class Straight(torch.autograd.Function):
    """Python in the graph that hides nothing: the sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: object, d: Tensor) -> Tensor:
        return d


def test_a_python_function_that_hides_nothing_is_read() -> None:
    _, x, y = make("mlp")
    model = nn.ModuleDict({"a": nn.Linear(12, 9), "b": nn.Linear(9, 4), "unused": nn.Linear(9, 4)}).double()

    def logits(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["b"](Straight.apply(m["a"](x)))

    memory = GradientMemory(model, logits=logits)
    memory.remember((x, y))
    assert "unused.weight" not in memory.store.shapes
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y, logits=logits))
    assert all(p.grad is None for p in model.parameters())


def test_outputs_of_no_protected_parameter_are_refused() -> None:
    model, x, y = make("mlp")
    other = make("mlp", seed=1)[0]
    for logits in (lambda m, x: m(x).detach(), lambda m, x: other(x)):
        memory = GradientMemory(model)
        with pytest.raises(ValueError, match="outputs do not depend on any protected parameter"):
            memory.remember((x, y), logits=logits)
        assert len(memory) == 0


def _own_forward(layer: nn.Linear) -> None:
    layer.forward = lambda t: functional.linear(t * t, layer.weight, layer.bias)


def _globally_doubled(layer: nn.Linear) -> Callable[[], None]:
    def double(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
        return 2 * out if module is layer else None

    return nn.modules.module.register_module_forward_hook(double).remove


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "a forward of its own": _own_forward,
    "a pre-hook on the input": lambda layer: layer.register_forward_pre_hook(lambda m, args: (args[0] ** 2,)),
    "a hook on the output": lambda layer: layer.register_forward_hook(lambda m, args, out: out**2),
    "a hook for all modules": _globally_doubled,
    "a parametrised bias": lambda layer: nn.utils.parametrize.register_parametrization(layer, "bias", nn.Tanh()),
    "a parametrised weight": nn.utils.parametrizations.weight_norm,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_changed_from_outside_is_read_rightly(change: str) -> None:
    model, x, y = make("mlp")
    undo = CHANGES[change](model[2])
    try:
        memory = GradientMemory(model, outputs="all")
        memory.remember((x, y))
        torch.testing.assert_close(rows(memory), logit_gradients(model, x, y, outputs="all"))
    finally:
        if change == "a hook for all modules":
            undo()
