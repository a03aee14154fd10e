"""Protection in the loops people write: schedulers, several optimizers, new heads, copies."""

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from memory_models import make, moved, remembered, train
from ogd.memory import GradientMemory
from ogd.memory.projection import store
from ogd.memory.projection.store import extend_gram
from reference import flat, logit_gradients, trainable


def test_schedulers_clipping_accumulation_closures_and_missing_gradients() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2:].parameters()}]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
    memory.protect(optimizer, every=3)
    before = flat(trainable(model))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for step in range(8):
        optimizer.zero_grad(set_to_none=True)
        for part in range(2):
            (functional.cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        model[2].weight.grad = None if step % 2 else model[2].weight.grad
        optimizer.step(closure if step == 5 else None)
        scheduler.step()
    memory.settle()
    assert moved(model, before).norm() > 1e-3
    assert (G @ moved(model, before)).abs().max() < 1e-10


def test_a_step_skipped_by_the_grad_scaler_counts_as_none() -> None:
    memory, _, x, y = remembered("mlp", torch.float32)
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for poison in (False, True, False):
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(memory.model(x), y)).backward()
        if poison:
            memory.model[0].weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
    assert protection.pending == 2
    assert all(p.isfinite().all() for p in memory.model.parameters())


def test_only_the_optimizers_own_trainable_parameters_move() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    model[2].weight.requires_grad_(False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = optim.SGD([model[0].weight, *model[2].parameters()], lr=0.1)  # model[0] without its bias
    memory.protect(optimizer, every=1)
    train(model, optimizer, x, y, 5)
    change = {n: p.detach() - before[n] for n, p in model.named_parameters()}
    assert {n for n, d in change.items() if d.any()} == {"0.weight", "2.bias"}
    assert (G @ flat(list(change.values()))).abs().max() < 1e-10


def test_unfreezing_and_new_groups_within_a_window_stay_in_the_guarantee() -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    before = flat(model.parameters())
    optimizer = optim.SGD(model[0].parameters(), lr=0.1)
    memory.protect(optimizer, every=50)
    train(model, optimizer, x, y, 3)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    train(model, optimizer, x, y, 3)
    model[0].weight.requires_grad_(False)
    train(model, optimizer, x, y, 3)
    model[0].weight.requires_grad_(True)
    memory.settle()
    assert (G @ (flat(model.parameters()) - before)).abs().max() < 1e-10


@pytest.mark.parametrize("shared", [False, True])
def test_two_protected_optimizers(shared: bool) -> None:
    memory, G, x, y = remembered("mlp")
    model = memory.model
    one = optim.SGD(model.parameters() if shared else model[0].parameters(), lr=0.1)
    two = optim.Adam(model[2:].parameters(), lr=0.01)
    memory.protect(one, every=3)
    memory.protect(two, every=5)
    before = flat(trainable(model))
    for _ in range(7):
        train(model, one, x, y, 2)
        train(model, two, x, y, 1)
    memory.settle()
    assert moved(model, before).norm() > 1e-3
    assert (G @ moved(model, before)).abs().max() < 1e-10


def test_an_optimizer_that_is_gone_leaves_nothing_pending() -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=50)
    train(memory.model, optimizer, x, y, 3)
    del optimizer
    gc.collect()
    memory.settle()
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10
    assert memory._protections == []


def test_a_head_added_later_is_free_and_then_protected(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Linear(12, 9), "a": nn.Linear(9, 3)}).double()
    x, y = torch.randn(6, 12).double(), torch.randint(3, (6,))
    memory = GradientMemory(model, logits=lambda m, x: m["a"](m["body"](x).tanh()))
    memory.remember((x, y))
    model["b"] = nn.Linear(9, 3).double()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)

    def second(m: nn.ModuleDict, x: Tensor) -> Tensor:
        return m["b"](m["body"](x).tanh())

    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(second(model, x), y).backward()
        optimizer.step()
    memory.remember((x, y), logits=second)
    G = torch.cat(
        [
            logit_gradients(model, x, y, logits=memory.logits, params=trainable(model)),
            logit_gradients(model, x, y, logits=second, params=trainable(model)),
        ]
    )
    assert memory.task_sizes == (6, 6)
    computed = []
    monkeypatch.setattr(store, "extend_gram", lambda K, p, n: computed.append(n - len(K)) or extend_gram(K, p, n))
    before = flat(trainable(model))
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(second(model, x[:3]), y[:3]).backward()
        optimizer.step()
    assert (G[6:] @ moved(model, before)).abs().max() < 1e-10
    assert memory.store.gram(memory.store.shapes).shape == (12, 12)
    assert computed == [6]  # the new head is zero in the old rows, so their K is as it was


@pytest.mark.parametrize("stage", ["empty", "remembered", "pending"])
def test_optimizers_pickle_and_models_copy_while_protected(stage: str) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    memory.protect(optimizer, every=5)
    if stage != "empty":
        memory.remember((x, y))
    if stage == "pending":
        train(model, optimizer, x, y, 2)
    restored = pickle.loads(pickle.dumps(optimizer))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    buffer = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, buffer)
    for free in (restored, twin_optimizer):
        assert not free._optimizer_step_post_hooks
    train(twin, twin_optimizer, x, y, 1)
    assert memory._protections[0].protects(optimizer)


def test_every_changes_when_the_projection_happens() -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=3)
    seen = []
    for _ in range(6):
        train(memory.model, optimizer, x, y, 1)
        seen.append(bool((G @ moved(memory.model, before)).abs().max() < 1e-10))
    assert seen == [False, False, True, False, False, True]
    assert protection.pending == 0


def test_weights_set_between_windows_are_respected() -> None:
    memory, G, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(memory.model, optimizer, x, y, 2)
    other = {n: torch.randn_like(p) for n, p in memory.model.state_dict().items()}
    memory.model.load_state_dict(other)
    before = flat(trainable(memory.model))
    train(memory.model, optimizer, x, y, 1)
    assert (G @ moved(memory.model, before)).abs().max() < 1e-9


def test_a_model_that_changes_its_precision_stays_protected() -> None:
    memory, G, x, y = remembered("mlp", torch.float32)
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(memory.model, optimizer, x, y, 1)
    memory.model.double()
    before = flat(trainable(memory.model))
    train(memory.model, optimizer, x.double(), y, 3)
    assert (G @ moved(memory.model, before)).abs().max() < 1e-5


def test_refusals() -> None:
    memory, _, _, _ = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    other = make("mlp")[0]
    refused = [
        (lambda: memory.protect(optimizer, every=1), ValueError, "protected already"),
        (lambda: GradientMemory(memory.model).protect(optimizer, every=1), ValueError, "protected already"),
        (
            lambda: memory.protect(optim.LBFGS(memory.model.parameters())),
            ValueError,
            "LBFGS cannot be protected",
        ),
        (lambda: memory.protect(optim.SGD(other.parameters()), every=1), ValueError, "no protected parameter"),
        (lambda: memory.protect(memory.model), TypeError, "optimizer must be a torch.optim.Optimizer"),
        (lambda: memory.protect(optim.SGD(memory.model.parameters()), every=0), ValueError, "every must be"),
        (lambda: memory.project({"7.weight": torch.zeros(3)}), ValueError, "the model has no such parameter"),
        (lambda: memory.project({"0.weight": torch.zeros(3)}), ValueError, r"the parameter \(10, 12\)"),
    ]
    for call, kind, message in refused:
        with pytest.raises(kind, match=message):
            call()
    assert len(memory._protections) == 1
