"""Avalanche's own strategies and benchmarks, with the plugin."""

import importlib

import pytest
import torch
from drift import forbidden, weights
from torch import nn
from torch.utils.data import TensorDataset

import ogd

avalanche = pytest.importorskip("avalanche", reason="Avalanche is not installed: pip install 'ogd[avalanche]'")
from avalanche.benchmarks import nc_benchmark  # noqa: E402
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint  # noqa: E402
from avalanche.models import MTSimpleMLP  # noqa: E402
from avalanche.training import Naive  # noqa: E402

from ogd.integrations.avalanche import OGDPlugin  # noqa: E402


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def heads():
    """Avalanche's perceptron that gets a head for each new task, and chooses by the task of each example."""
    torch.manual_seed(0)
    return MTSimpleMLP(input_size=6, hidden_size=16)


def dataset(number, n=24):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(n, 6, generator=generator)
    made = TensorDataset(x, (x @ torch.randn(6, 3, generator=generator)).argmax(1))
    made.targets = made.tensors[1].tolist()
    return made


def stream():
    sets = [dataset(number) for number in range(2)]
    options = {"one_dataset_per_exp": True, "class_ids_from_zero_in_each_exp": True, "shuffle": False}
    return nc_benchmark(sets, sets, n_experiences=2, task_labels=True, **options).train_stream


@pytest.fixture
def checkpoints(monkeypatch):
    """Let Avalanche 0.6 checkpoint under a torch that is newer than it."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # it loads whole pickles
    sgd = importlib.import_module("torch.optim.sgd")  # torch.optim hides its modules, and dill then pickles the class
    monkeypatch.setattr(torch.optim, "sgd", sgd, raising=False)


def strategy(model, *plugins):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    return Naive(
        model=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), train_mb_size=8, train_epochs=3,
        plugins=list(plugins), evaluator=None,
    )  # fmt: skip


@pytest.mark.parametrize("make", [plain, heads])
def test_remembers_experiences_into_a_memory_of_your_own(make):
    model = make()
    memory = ogd.GradientMemory(model, per_task=8)
    trained = strategy(model, OGDPlugin(memory))
    for experience in stream():
        trained.train(experience)
    assert memory.task_sizes == (8, 8)


@pytest.mark.parametrize("make", [plain, heads])
@pytest.mark.parametrize("every", [1, 5])
def test_moves_only_where_the_first_task_stays(make, every):
    model, plugin = make(), OGDPlugin(ogd.GradientMemory, per_task=8, every=every)
    trained = strategy(model, plugin)
    first, second = stream()
    trained.train(first)
    state, before = plugin.memory.state_dict(), weights(model)
    trained.train(second)
    assert plugin.memory.task_sizes == (8, 8)
    assert forbidden(state, model, before) < 1e-5
    before = weights(model)
    strategy(model).train(first)
    assert forbidden(state, model, before) > 0.1


@pytest.mark.usefixtures("checkpoints")
def test_a_checkpoint_goes_on_as_without_a_break(tmp_path):
    trained = strategy(plain(), OGDPlugin(ogd.GradientMemory, per_task=8))
    first, second = stream()
    trained.train(first)
    save_checkpoint(trained, tmp_path / "first.pkl")
    torch.manual_seed(3)
    trained.train(second)
    again, done = maybe_load_checkpoint(
        strategy(plain(), OGDPlugin(ogd.GradientMemory, per_task=8)), tmp_path / "first.pkl"
    )
    assert done == 1
    torch.manual_seed(3)
    again.train(second)
    (plugin,) = [plugin for plugin in again.plugins if isinstance(plugin, OGDPlugin)]
    assert plugin.memory.task_sizes == (8, 8)
    for name, p in trained.model.named_parameters():
        torch.testing.assert_close(p, again.model.get_parameter(name))


@pytest.mark.usefixtures("checkpoints")
def test_a_memory_of_your_own_and_its_options_come_back(tmp_path):
    model = plain()
    memory = ogd.GradientMemory(model, per_task=5, outputs="mean", params=["2"], budget=99)
    trained = strategy(model, OGDPlugin(memory, remember=False))
    first, second = stream()
    trained.train(first)
    memory.remember((torch.randn(7, 6), None))
    save_checkpoint(trained, tmp_path / "first.pkl")
    again, _ = maybe_load_checkpoint(strategy(plain()), tmp_path / "first.pkl")
    again.train(second)
    (plugin,) = [plugin for plugin in again.plugins if isinstance(plugin, OGDPlugin)]
    assert repr(plugin.memory) == repr(memory)
    assert plugin.memory._parameters.wanted == ["2"]
    assert plugin.memory.model is again.model
