"""What a protected optimizer does: P Δw, for every model and optimizer, at every step or now and then."""

import copy

import pytest
import torch
from torch import nn, optim

from memory_models import MODELS, make, moved, remembered, rows, train
from ogd.lab.benchmarks import rotate
from ogd.lab.benchmarks.task import labels, pixels
from ogd.lab.data import Dataset
from ogd.lab.models import mlp
from ogd.memory import GradientMemory
from reference import algorithm_1, flat, logit_gradients, project_dense, trainable

OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.01),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.01, weight_decay=0.1),
    "adamw foreach": lambda ps: optim.AdamW(ps, lr=0.01, foreach=True),
    "adam fused": lambda ps: optim.Adam(ps, lr=0.01, fused=True),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.01),
    "rmsprop": lambda ps: optim.RMSprop(ps, lr=0.001, momentum=0.5),
}


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_moves_by_the_dense_projection(name: str, every: int) -> None:
    memory, G, x, y = remembered(name)
    model, free = memory.model.eval(), copy.deepcopy(memory.model).eval()
    before = flat(trainable(model))
    train(free, optim.SGD(free.parameters(), lr=0.1), x, y, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every)
    train(model, optimizer, x, y, 1)
    memory.settle()
    torch.testing.assert_close(moved(model, before), project_dense(G, moved(free, before)), rtol=0, atol=1e-10)
    train(model, optimizer, x, y, 9)
    memory.settle()
    assert moved(model, before).norm() > 1e-4
    assert (G @ moved(model, before)).abs().max() < 1e-10


@pytest.mark.parametrize("outputs", ["true", "mean", "all"])
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_keeps_the_remembered_outputs(kind: str, every: int, outputs: str) -> None:
    memory, G, x, y = remembered("mlp", outputs=outputs)
    before = flat(trainable(memory.model))
    optimizer = OPTIMIZERS[kind](memory.model.parameters())
    memory.protect(optimizer, every)
    train(memory.model, optimizer, x, y, 10)
    memory.settle()
    step = moved(memory.model, before)
    assert step.norm() > 1e-3
    assert (G @ step).abs().max() < 1e-10


@pytest.mark.parametrize("name", MODELS)
def test_float32(name: str) -> None:
    memory, G, _, _ = remembered(name, torch.float32)
    update = {n: torch.randn_like(p) for n, p in memory.model.named_parameters()}
    u = flat(list(update.values()))
    Pu = flat(list(memory.project(update).values()))
    assert (Pu - project_dense(G, u)).norm() < 1e-4 * u.norm()
    assert ((G @ Pu).abs() <= 1e-4 * G.norm(dim=1) * u.norm()).all()


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("outputs", ["true", "mean", "all"])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_the_paper_network_at_its_real_size(
    mnist: Dataset, dtype: torch.dtype, precision: float, outputs: str, every: int
) -> None:
    x, y = pixels(mnist.train_images[:24]).flatten(1).to(dtype), labels(mnist.train_labels[:24])
    torch.manual_seed(0)
    model = mlp().to(dtype)  # 784-100-100-10
    G = logit_gradients(copy.deepcopy(model).double(), x[:4].double(), y[:4], outputs=outputs)
    free, before = copy.deepcopy(model), flat(trainable(model))
    memory = GradientMemory(model, outputs=outputs)
    memory.remember((x[:4], y[:4]))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every)
    train(model, optimizer, x[4:], y[4:], every)  # the steps of a window are those of the free model
    train(free, optim.SGD(free.parameters(), lr=0.1), x[4:], y[4:], every)
    step = moved(free, before)
    assert step.norm() > 0.01
    assert (moved(model, before) - project_dense(G, step)).norm() < precision * step.norm()
    train(model, optimizer, x[4:], y[4:], 2 * every)
    total = moved(model, before)
    assert ((G @ total).abs() < precision * G.norm(dim=1) * total.norm()).all()
    assert ((G @ step).abs() > 100 * precision * G.norm(dim=1) * step.norm()).any()


def test_bfloat16_weights_are_projected_in_float32() -> None:
    model, x, y = make("mlp", dtype=torch.bfloat16)
    memory = GradientMemory(model)
    memory.remember((x, y))
    G = torch.cat([torch.cat([b.rows(0, b.n) for b in p.block.split()], 1) for p in memory.store.pieces], 1)
    update = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    projected = memory.project(update)
    assert all(u.dtype == torch.bfloat16 for u in projected.values())
    u, Pu = flat(list(update.values())), flat(list(projected.values()))
    assert (Pu - project_dense(G, u)).norm() < 1e-2 * u.norm()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-1)]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounding_the_weights_limits_the_guarantee(seed: int, dtype: torch.dtype, bound: float) -> None:
    cosines = []
    for protect in (True, False):
        model, x, y = make("mlp", seed=seed, dtype=dtype)
        memory = GradientMemory(model)
        memory.remember((x, y))
        G, before = rows(memory), flat(trainable(model))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        if protect:
            memory.protect(optimizer, every=1)
        _, x, y = make("mlp", n=20, seed=seed + 10, dtype=dtype)
        train(model, optimizer, x, y, 100)
        step = moved(model, before)
        cosines.append(float(((G @ step).abs() / (G.norm(dim=1) * step.norm())).max()))
    assert cosines[0] < bound
    assert cosines[1] > 0.1


@pytest.mark.parametrize(("momentum", "steps", "n"), [(0.0, 200, 100), (0.9, 50, 20)])
def test_sgd_is_algorithm_1_of_the_paper(momentum: float, steps: int, n: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)).double()
    naive = copy.deepcopy(model)
    batches = [(torch.rand(10, 784).double(), torch.randint(10, (10,))) for _ in range(steps)]
    stored = torch.rand(n, 784).double(), torch.randint(10, (n,))
    algorithm_1(naive, [([], stored), (batches, stored)], lr=0.01, momentum=momentum)
    memory = GradientMemory(model)
    memory.remember(stored)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    memory.protect(optimizer, every=1)
    for x, y in batches:
        train(model, optimizer, x, y, 1)
    for p, q in zip(model.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-9)


def test_logits_of_remembered_examples_stay() -> None:
    changes = []
    for protect in (True, False):
        model, x, y = make("mlp", n=20, dtype=torch.float32)
        _, x2, y2 = make("mlp", n=20, seed=1, dtype=torch.float32)
        memory = GradientMemory(model, outputs="all")
        memory.remember((x, y))
        optimizer = optim.SGD(model.parameters(), lr=1e-4)
        if protect:
            memory.protect(optimizer, every=1)
        before = model(x).detach()
        train(model, optimizer, x2, y2, 1000)
        changes.append((model(x) - before).norm().item())
    assert changes[0] < changes[1] / 10


def test_true_logits_of_remembered_digits_stay(mnist: Dataset) -> None:
    """The paper's network and default settings: MNIST is remembered, then MNIST turned by 40° is learned."""
    images, y = pixels(mnist.train_images[:12_000]), labels(mnist.train_labels[:12_000])
    x, turned = images.flatten(1), rotate(images, 40).flatten(1)
    torch.manual_seed(0)
    first = mlp()
    optimizer = optim.SGD(first.parameters(), lr=0.05)
    for batch in torch.arange(12_000).split(20):
        train(first, optimizer, x[batch], y[batch], 1)
    old = slice(0, 200)
    changes = []
    for protect in (True, False):
        model = copy.deepcopy(first)
        memory = GradientMemory(model)
        memory.remember((x[old], y[old]))
        optimizer = optim.SGD(model.parameters(), lr=1e-4)
        if protect:
            memory.protect(optimizer, every=1)
        before = model(x[old]).gather(1, y[old, None]).detach()
        for batch in torch.arange(10_000).split(10):
            train(model, optimizer, turned[batch], y[batch], 1)
        changes.append((model(x[old]).gather(1, y[old, None]) - before).norm().item())
    assert changes[0] < changes[1] / 10
