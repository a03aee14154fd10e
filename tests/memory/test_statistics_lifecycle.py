"""Held statistics when a model or its memory is copied, saved, loaded, compiled or fails."""

import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn, optim

from memory_models import train
from ogd.memory import GradientMemory, load
from test_protect_statistics import Activated, Counter, buffers, data, net, remembered


def test_statistics_that_the_user_sets_are_taken() -> None:
    memory, model, _ = remembered(nn.BatchNorm1d(6))
    x, _ = data(1)
    model(x)
    other = {name: b + 1 for name, b in model.state_dict().items()}
    model.load_state_dict(other)
    model(x)
    assert all(torch.equal(b, other[name]) for name, b in model.state_dict().items())
    model[1].reset_running_stats()
    model(x)
    assert not model[1].running_mean.any()
    assert memory._statistics.names == {"1"}


def test_copies_of_the_model_and_a_memory_that_is_gone_hold_nothing() -> None:
    memory, model, _ = remembered(nn.BatchNorm1d(6))
    x, _ = data(1)
    model(x)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(stored, weights_only=False)]
    before = int(model[1].num_batches_tracked)
    for twin in copies:
        twin(x)
        assert twin[1].num_batches_tracked == before + 1
    twin = copy.deepcopy(memory)
    twin.protect(optim.SGD(twin.model.parameters(), lr=0.1), every=1)
    twin.model(x)
    model(x)
    assert twin.model[1].num_batches_tracked == model[1].num_batches_tracked == before
    del memory
    gc.collect()
    model(x)
    assert model[1].num_batches_tracked == before + 1


def test_a_saved_memory_holds_again_when_it_protects(tmp_path) -> None:
    memory, model, _ = remembered(nn.BatchNorm1d(6))
    memory.save(tmp_path / "memory.safetensors")
    stored = memory.state_dict()
    assert stored["buffers"] == ["1"]
    memory.unprotect()
    again = load(tmp_path / "memory.safetensors", model)
    protection = again.protect(optim.SGD(model.parameters(), lr=0.1), every=1)
    x, _ = data(1)
    before = buffers(model)
    model(x)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    protection.unprotect()
    model(x)
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    del stored["buffers"]
    again.load_state_dict(stored)
    assert again._statistics.names == {"1"}
    assert load(tmp_path / "memory.safetensors", model, freeze_buffers=False).freeze_buffers is False
    with pytest.raises(ValueError, match="list of names"):
        again.load_state_dict({**stored, "buffers": "1"})


def test_a_failing_pass_leaves_the_module_as_it_was() -> None:
    memory, model, _ = remembered(nn.BatchNorm1d(6))
    x, _ = data(1)
    for known in (False, True):
        with pytest.raises(RuntimeError):
            model[1](torch.zeros(4, 7, dtype=torch.float64))
        assert model[1].training
        assert model[1]._buffers["running_mean"].shape == (6,)
        if not known:
            model(x)
    assert memory._statistics.names == {"1"}


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("first", ["compiled", "remembered"])
@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(6), lambda: Counter(Activated(nn.SiLU()))])
def test_compiled_models_are_held_too(layer, first: str) -> None:
    torch.compiler.reset()
    x, y = data(0)
    if first == "compiled":
        model = net(layer())
        compiled = torch.compile(model, backend="eager")
        train(compiled, optim.SGD(model.parameters(), lr=0.05), x, y, 3)
        memory = GradientMemory(model)
        memory.remember((x, y))
    else:
        memory, model, _ = remembered(layer())
        compiled = torch.compile(model, backend="eager")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    before = buffers(model)
    x, y = data(1, shift=2.0)
    train(compiled, optimizer, x, y, 3)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    torch.testing.assert_close(compiled(x), model.eval()(x))
