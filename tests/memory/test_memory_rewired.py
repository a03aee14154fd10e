"""A model that is changed after `remember`: every remembered parameter is followed, or an error names it."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.utils import parametrizations, parametrize, prune

from memory_models import make, rows, train
from ogd.memory import GradientMemory, Memory, load
from reference import logit_gradients


def remembered(params: list[str] | None = None) -> tuple[Memory, nn.Module, Tensor, Tensor]:
    model, x, y = make("mlp", n=8)
    memory = GradientMemory(model, params=params)
    memory.remember((x[:4], y[:4]))
    return memory, model, x, y


def drift(changed: Callable[[], tuple[Memory, nn.Module, Tensor, Tensor]], every: int = 1, lr: float = 1e-3) -> float:
    """How far the remembered outputs move, relative to where plain training would take them."""
    result = []
    for protected in (True, False):
        memory, model, x, y = changed()
        optimizer = optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
        if protected:
            memory.protect(optimizer, every=every)
        before = model(x[:4])[range(4), y[:4]].detach()
        train(model, optimizer, x[4:], y[4:].flip(0), 10)
        memory.settle()
        result.append((model(x[:4])[range(4), y[:4]].detach() - before).norm().item())
    return result[0] / result[1]


class Half(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w / 2 + w**3


def insert(model: nn.Sequential) -> None:
    model.insert(0, nn.Identity())
    model.insert(3, nn.Dropout(0.0))


def prune_twice(model: nn.Sequential) -> None:
    prune.random_unstructured(model[2], "weight", 0.3)
    prune.l1_unstructured(model[2], "weight", 0.3)


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "pruning": lambda m: prune.l1_unstructured(m[2], "weight", 0.4),
    "pruning of all layers": lambda m: [prune.ln_structured(m[i], "weight", 0.3, n=2, dim=0) for i in (0, 2)],
    "pruning twice": prune_twice,
    "pruning of a bias": lambda m: prune.random_unstructured(m[0], "bias", 0.5),
    "weight norm": lambda m: parametrizations.weight_norm(m[2]),
    "weight norm of all layers": lambda m: [parametrizations.weight_norm(m[i]) for i in (0, 2, 4)],
    "a parametrisation": lambda m: parametrize.register_parametrization(m[2], "weight", Half()),
    "spectral norm": lambda m: parametrizations.spectral_norm(m[2]),
    "Sequential.insert": insert,
}


SAME = {"weight norm", "weight norm of all layers", "Sequential.insert"}  # these compute the same function as before


@pytest.mark.parametrize("params", [None, ["0", "2.weight", "2.bias", "4"]])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_stays_protected(change: str, params: list[str] | None) -> None:
    def changed() -> tuple[Memory, nn.Module, Tensor, Tensor]:
        found = remembered(params)
        CHANGES[change](found[1])
        return found

    for every in (1, 5):
        if change in SAME:  # what is left is of second order in the step
            assert drift(changed, every) < 1e-3
            assert drift(changed, every, lr=1e-4) < 1e-4
        else:  # the gradients are still those before the function changed
            assert drift(changed, every) < 0.2


@pytest.mark.parametrize("change", CHANGES)
def test_rows_follow_the_chain_rule(change: str) -> None:
    memory, model, x, y = remembered()
    memory.project({"0.weight": torch.ones_like(model[0].weight)})  # a K is computed, and must follow as well
    before = copy.deepcopy(model)
    CHANGES[change](model)
    memory.project({})
    G = rows(memory)
    torch.testing.assert_close(memory.store.gram(memory.store.shapes), G @ G.mT)
    if change in SAME:
        torch.testing.assert_close(G, logit_gradients(model.eval(), x[:4], y[:4]))
    if change == "pruning":
        expected = logit_gradients(before, x[:4], y[:4], params=[before[2].weight]) * model[2].weight_mask.flatten()
        (piece,) = memory.store.only({"2.weight_orig"})
        torch.testing.assert_close(piece.block.rows(0, 4), expected)
    if change == "a parametrisation":  # w = θ/2 + θ³
        (piece,) = memory.store.only({"2.parametrizations.weight.original"})
        slope = 1 / 2 + 3 * before[2].weight.flatten() ** 2
        expected = logit_gradients(before, x[:4], y[:4], params=[before[2].weight]) * slope
        torch.testing.assert_close(piece.block.rows(0, 4), expected.detach())


def test_a_chosen_parameter_stays_chosen_under_its_new_name(tmp_path: Path) -> None:
    memory, model, *_ = remembered(["2.weight"])
    prune.l1_unstructured(model[2], "weight", 0.4)
    memory.protect(optim.SGD([model[2].weight_orig], lr=0.1), every=1)
    assert memory._parameters.wanted == ["2.weight_orig"]
    memory.save(tmp_path / "m.safetensors")
    assert set(load(tmp_path / "m.safetensors", model).store.shapes) == {"2.weight_orig"}


def test_stats_follow_a_chosen_parameter() -> None:
    memory, model, _, _ = remembered(["2"])
    before = memory.stats()
    insert(model)
    assert memory.stats() == before
    assert before.capacity == model[4].weight.numel() + model[4].bias.numel()


def test_pruning_between_two_steps_of_one_window_is_noticed() -> None:
    memory, model, x, y = remembered()
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    memory.protect(optimizer, every=4)
    train(model, optimizer, x[4:], y[4:], 2)
    prune.l1_unstructured(model[2], "weight", 0.4)
    train(model, optimizer, x[4:], y[4:], 1)
    assert "2.weight_orig" in memory.store.shapes
    prune.l1_unstructured(model[2], "weight", 0.4)  # the name is the same, the mask another
    train(model, optimizer, x[4:], y[4:], 1)
    (piece,) = memory.store.only({"2.weight_orig"})
    assert not piece.block.rows(0, 4)[:, model[2].weight_mask.flatten() == 0].any()
    prune.remove(model[2], "weight")
    memory.settle()
    train(model, optimizer, x[4:], y[4:], 1)
    assert "2.weight" in memory.store.shapes


class LoRA(nn.Module):
    """y = W x + B A x, with W frozen."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(2, base.in_features, dtype=base.weight.dtype))
        self.B = nn.Parameter(torch.zeros(base.out_features, 2, dtype=base.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.mT @ self.B.mT


def adapted(model: nn.Sequential) -> None:
    model.requires_grad_(False)
    for i in (0, 2, 4):
        model[i] = LoRA(model[i])


def test_adapters_after_remember_are_refused_by_name() -> None:
    memory, model, x, y = remembered()
    memory.remember((x[4:], y[4:]))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=1)
    adapted(model)
    optimizer.add_param_group({"params": [p for p in model.parameters() if p.requires_grad]})
    message = r"0\.A, 0\.B, .*added since the last `remember` .*0\.weight is now 0\.base\.weight"
    weights = [p.detach().clone() for p in model.parameters()]
    for call in (lambda: train(model, optimizer, x, y, 1), lambda: memory.remember((x, y)), memory.state_dict):
        with pytest.raises(ValueError, match=message):
            call()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights, strict=True))
    memory.forget(0)
    with pytest.raises(ValueError, match=message):  # the other task is still there
        memory.remember((x, y))
    memory.forget(0)
    memory.remember((x[:4], y[:4]))
    assert set(memory.store.shapes) == {f"{i}.{leaf}" for i in (0, 2, 4) for leaf in "AB"}
    before = model(x[:4])[range(4), y[:4]].detach()
    optimizer.param_groups[-1]["lr"] = 1e-5
    train(model, optimizer, x[4:], y[4:], 3)
    assert protection.projector is not None
    assert (model(x[:4])[range(4), y[:4]].detach() - before).norm() < 1e-6


def with_adapters() -> tuple[Memory, nn.Module, Tensor, Tensor]:
    model, x, y = make("mlp", n=8)
    adapted(model)
    memory = GradientMemory(model)
    memory.remember((x[:4], y[:4]))
    return memory, model, x, y


def wrapped() -> tuple[Memory, nn.Module, Tensor, Tensor]:
    memory, model, x, y = remembered()
    model[2] = nn.Sequential(model[2])
    memory.project({})
    assert "2.0.weight" in memory.store.shapes
    return memory, model, x, y


@pytest.mark.parametrize("changed", [with_adapters, wrapped])
def test_adapters_before_remember_and_wrapping_alone_are_protected(changed: Callable[..., object]) -> None:
    assert drift(changed) < 1e-3


def test_a_layer_inserted_in_a_chain_is_refused_and_a_new_head_is_free() -> None:
    memory, model, x, y = remembered()
    model.insert(2, nn.Linear(10, 10).double())
    with pytest.raises(ValueError, match=r"2\.weight, 2\.bias: added since .*\(2\.weight is now 3\.weight\)"):
        memory.protect(optim.SGD(model.parameters(), lr=0.1), every=1)
    heads = nn.ModuleDict({"body": nn.Linear(12, 9), "a": nn.Linear(9, 4)}).double()
    memory = GradientMemory(heads, logits=lambda m, x: m["a"](m["body"](x)))
    memory.remember((x, y))
    heads["b"] = nn.Linear(9, 4).double()
    memory.protect(optim.SGD(heads.parameters(), lr=0.1), every=1)


class Heads(nn.Module):
    def __init__(self, old: nn.Module):
        super().__init__()
        self.heads = nn.ModuleList([old, nn.Linear(9, 4).double()])

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[0](x)


@pytest.mark.parametrize("several", [Heads, lambda old: nn.ModuleDict({"a": old, "b": nn.Linear(9, 4).double()})])
def test_one_head_that_becomes_several_is_followed(several: Callable[[nn.Module], nn.Module]) -> None:
    _, x, y = make("mlp", n=8)
    model = nn.ModuleDict({"body": nn.Linear(12, 9), "head": nn.Linear(9, 4)}).double()
    memory = GradientMemory(model, logits=lambda m, x: m["head"](m["body"](x)))
    memory.remember((x, y))
    model["head"] = several(model["head"])
    memory.protect(optim.SGD(model.parameters(), lr=0.1), every=1)
    assert len(memory.store.shapes) == 4
    assert all(name in dict(model.named_parameters()) for name in memory.store.shapes)


def test_what_is_gone_is_named() -> None:
    memory, model, x, y = remembered()
    memory.remember((x[4:], y[4:]))
    memory.protect(optimizer := optim.SGD(model.parameters(), lr=0.1), every=1)
    model[4] = nn.Identity()
    for call in (
        lambda: memory.remember((x, y)),
        lambda: memory.save("nowhere"),
        lambda: memory.protect(optim.SGD(model.parameters(), lr=0.1), every=1),
        lambda: memory.project({}),
    ):
        with pytest.raises(ValueError, match=r"4\.weight, 4\.bias: remembered, but no longer a parameter"):
            call()
    memory.unprotect(optimizer)
    memory.forget(0)
    with pytest.raises(ValueError, match=r"4\.weight, 4\.bias: remembered"):
        memory.project({})
    memory.forget(0)
    memory.project({})


def reassigned() -> tuple[Memory, nn.Module, Tensor, Tensor]:
    memory, model, x, y = remembered()
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    return memory, model, x, y


def test_a_parameter_replaced_under_its_name_is_noticed() -> None:
    assert drift(reassigned) < 1e-3  # the values are the same: nothing to say
    memory, model, *_ = remembered()
    model[2] = nn.Linear(10, 9).double()
    with pytest.warns(UserWarning, match=r"2\.weight, 2\.bias: replaced by another tensor with other values"):
        memory.protect(optim.SGD(model.parameters(), lr=0.1), every=1)
    memory.project({})  # said once
