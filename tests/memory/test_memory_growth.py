"""Heads that grow: old gradients get zeros for new outputs; what else grows is refused by name."""

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from memory_models import make, rows, train
from ogd.memory import ExampleMemory, GradientMemory, load, register_layer
from reference import logit_gradients, pseudo_huber


class IncrementalClassifier(nn.Module):
    """As in Avalanche: a new nn.Linear of more classes under the same name, the old rows copied into it."""

    def __init__(self, inputs: int, classes: int = 5, bias: bool = True):
        super().__init__()
        self.classifier = nn.Linear(inputs, classes, bias=bias)

    def adapt(self, classes: int) -> None:
        old = self.classifier
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None).to(old.weight)
        with torch.no_grad():
            new.weight[: old.out_features] = old.weight
            if old.bias is not None:
                new.bias[: old.out_features] = old.bias
        self.classifier = new

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x)


class Positions(IncrementalClassifier):
    """Logits are means over the positions of a convolution's output: stored factored with T > 1, or dense."""

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x.unflatten(1, (2, -1))).tanh().mean(1)


HEADS: dict[str, Callable[[], IncrementalClassifier]] = {
    "factored": lambda: IncrementalClassifier(10),
    "without bias": lambda: IncrementalClassifier(10, bias=False),
    "dense": lambda: IncrementalClassifier(10, 1),
    "positions": lambda: Positions(5),
}


def net(head: str) -> tuple[nn.Module, Tensor, Tensor]:
    _, x, _ = make("mlp", n=12)
    model = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), HEADS[head]()).double()
    return model, x, torch.arange(12) % model[2].classifier.out_features


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_grows_stays_protected(head: str, tmp_path: Path) -> None:
    model, x, y = net(head)
    memory = GradientMemory(model, outputs="all")
    memory.remember((x[:4], y[:4]))
    _ = memory.rank  # K is there, and stays
    K, old = memory.store.gram(memory.store.shapes), model[2].classifier.out_features
    for classes in (old + 2, old + 5):
        model[2].adapt(classes)
        memory.project({})
        G = logit_gradients(model, x[:4], y[:4], outputs="all", classes=range(old))
        torch.testing.assert_close(rows(memory), G)
        torch.testing.assert_close(memory.store.gram(memory.store.shapes), K)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    train(model, optimizer, x[4:], y[4:] + 5, 5)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    assert (G @ moved).abs().max() < 1e-12
    assert moved.norm() > 1e-3
    memory.remember((x[4:8], y[4:8]))
    memory.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors", model)
    assert torch.equal(rows(again), rows(memory))
    torch.testing.assert_close(memory.store.gram(memory.store.shapes), rows(memory) @ rows(memory).mT)


@pytest.mark.parametrize("settled", [True, False])
def test_growing_while_the_optimizer_is_protected(settled: bool) -> None:
    model, x, y = net("factored")
    memory = GradientMemory(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=3)
    memory.remember((x[:4], y[:4]))
    train(model, optimizer, x[4:], y[4:], 2)
    if settled:  # else the values that are copied are not yet projected, and that is said
        memory.settle()
    model[2].adapt(10)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    with contextlib.nullcontext() if settled else pytest.warns(UserWarning, match=r"every > 1, call memory\.settle"):
        train(model, optimizer, x[4:], y[4:] + 5, 1)
    memory.settle()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    train(model, optimizer, x[4:], y[4:] + 5, 3)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    G = rows(memory)
    assert G.shape == (4, len(moved))
    assert (G @ moved).abs().max() < 1e-12


class Turned(nn.Module):
    """A weight that lies (in, out), as Hugging Face's Conv1D."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_weight_that_lies_the_other_way_grows_in_its_last_axis() -> None:
    register_layer(Turned, lambda layer, x, d: (x.unsqueeze(1), d.unsqueeze(1)), out_first=False)
    _, x, y = make("mlp")
    model = nn.Sequential(Turned(torch.randn(12, 4).double()))
    memory = GradientMemory(model)
    memory.remember((x, y))
    model[0] = Turned(torch.cat([model[0].weight.detach(), torch.zeros(12, 3).double()], 1))
    memory.project({})
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y))


def test_what_grows_otherwise_is_refused_and_other_values_are_said() -> None:
    def grown(layer: nn.Linear, inputs: int, outputs: int) -> nn.Linear:
        new = nn.Linear(inputs, outputs).double()
        with torch.no_grad():
            new.weight[: layer.out_features, : layer.in_features] = layer.weight[:outputs]
            new.bias[: layer.out_features] = layer.bias[:outputs]
        return new

    model, x, y = make("mlp")
    memory = GradientMemory(model)
    memory.remember((x, y))
    kept = copy.deepcopy(rows(memory))
    for inputs, outputs, shape in ((12, 4, r"\(4, 12\)"), (12, 6, r"\(6, 12\)")):
        model[4] = grown(model[4] if model[4].in_features == 9 else make("mlp")[0][4], inputs, outputs)
        with pytest.raises(ValueError, match=rf"'4.weight' has shape {shape}, its stored gradients \(4, 9\): only"):
            memory.remember((x, y))
    model[4] = make("mlp")[0][4]
    assert torch.equal(rows(memory), kept)
    model[4] = nn.Linear(9, 6).double()
    with pytest.warns(UserWarning, match=r"4\.weight, 4\.bias: replaced by another tensor with other values"):
        memory.remember((x, y))
    smaller = GradientMemory(model)
    smaller.remember((x, y))
    model[4] = nn.Linear(9, 3).double()
    with pytest.raises(ValueError, match=r"'4.weight' has shape \(3, 9\), its stored gradients \(6, 9\)"):
        smaller.protect(optim.SGD(model.parameters(), lr=0.1), every=1)


@pytest.mark.parametrize(("size", "grows"), [((60, 4), True), ((40, 5), False), ((39, 4), False), ((40, 3), False)])
def test_a_table_may_gain_rows_and_nothing_else(size: tuple[int, int], grows: bool) -> None:
    model = nn.Sequential(nn.Embedding(40, 4), nn.Flatten(), nn.Linear(8, 3))
    memory = GradientMemory(model, params=["0"])
    memory.remember((torch.randint(40, (5, 2)), torch.tensor([0, 1, 2, 0, 1])))
    old, model[0] = model[0], nn.Embedding(*size)
    update = torch.randn(size)
    if not grows:
        with pytest.raises(ValueError, match="only the outputs of a layer may grow"):
            memory.project({"0.weight": update})
        return
    with torch.no_grad():
        model[0].weight[:40] = old.weight
    projected = memory.project({"0.weight": update})["0.weight"]
    assert torch.equal(projected[40:], update[40:])
    assert not torch.equal(projected[:40], update[:40])


@pytest.mark.parametrize("bag", [False, True], ids=["Embedding", "EmbeddingBag"])
def test_an_embedding_that_grows_is_rehearsed(bag: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    words = nn.EmbeddingBag(6, 5) if bag else nn.Embedding(6, 5)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(5 if bag else 10, 3)).double()
    x, y = torch.randint(6, (8, 2)), torch.arange(8) % 3
    memory = ExampleMemory(model)
    memory.remember((x, y))
    memory.save(tmp_path / "m.safetensors")
    z = model(x).detach()
    larger = type(words)(9, 5).double()  # three new users or words, with rows of their own
    with torch.no_grad():
        larger.weight[:6] = words.weight
    model[0] = larger
    assert memory.stats().drift == (0.0,)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(model, optimizer, torch.randint(6, 9, (8, 2)), y, 3)
    again = load(tmp_path / "m.safetensors", model)
    for one in (memory, again):
        now = model(x)
        slow = functional.cross_entropy(now, y) + 0.5 * pseudo_huber((now - z).square().mean(1)).mean()
        torch.testing.assert_close(one.remembered_loss(8), slow)
    memory.remember((torch.randint(9, (8, 2)), y))
    assert memory.task_sizes == (8, 8)
