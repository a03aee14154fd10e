"""On Avalanche's own Permuted MNIST, OGD through the plugin is the laboratory's OGD, within noise."""

import math
from statistics import mean, variance

import numpy as np
import pytest
import torch
from torch import nn

from conftest import idx
from ogd import benchmarks, data
from ogd.methods import OGD, SGD
from ogd.models import StackedMLP, mlp
from ogd.training import train

pytest.importorskip("avalanche", reason="Avalanche is not installed: pip install 'ogd[avalanche]'")
from avalanche.benchmarks.classic import PermutedMNIST  # noqa: E402
from avalanche.training import Naive  # noqa: E402

from ogd.integrations.avalanche import OGDPlugin  # noqa: E402

RUNS, TASKS, EXAMPLES, STORED, SIZES = 5, 3, 1000, 60, (784, 50, 50, 10)
SCHEDULE = {"epochs": 5, "batch_size": 10, "lr": 0.05}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The first images of MNIST, where torchvision looks for the files that it downloads."""
    raw = tmp_path_factory.mktemp("mnist") / "MNIST" / "raw"
    raw.mkdir(parents=True)
    mnist = data.load("mnist")
    parts = {"train": (mnist.train_images, mnist.train_labels), "t10k": (mnist.test_images, mnist.test_labels)}
    for name, (images, labels) in parts.items():
        (raw / f"{name}-images-idx3-ubyte").write_bytes(idx(np.asarray(images[:EXAMPLES]).reshape(-1, 28, 28)))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.asarray(labels[:EXAMPLES])))
    return raw


def in_avalanche(raw, seed, *plugins):
    """Task 1's accuracy after all tasks, trained and evaluated by Avalanche."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), mlp(SIZES))
    stream = PermutedMNIST(
        TASKS, seed=seed, dataset_root=raw.parents[1], train_transform=None, eval_transform=None
    )
    strategy = Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=SCHEDULE["lr"]), criterion=nn.CrossEntropyLoss(),
        train_mb_size=SCHEDULE["batch_size"], train_epochs=SCHEDULE["epochs"], eval_mb_size=EXAMPLES,
        plugins=list(plugins),
    )  # fmt: skip
    for experience in stream.train_stream:
        strategy.train(experience)
    found = strategy.eval(stream.test_stream[:1])
    return found["Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp000"]


def in_the_laboratory(raw, method):
    benchmark = benchmarks.permuted(TASKS, dataset=data.load(raw))
    result = train(benchmark, StackedMLP(SIZES, runs=RUNS), method, progress=False, **SCHEDULE)
    return result.accuracy[:, -1, 0].tolist()


def noise(one, other):
    return math.sqrt(variance(one) / len(one) + variance(other) / len(other))


def test_ogd_through_the_plugin_is_the_laboratorys(small):
    plugin = [in_avalanche(small, seed, OGDPlugin(per_task=STORED)) for seed in range(RUNS)]
    laboratory = in_the_laboratory(small, OGD(STORED))
    plain = in_the_laboratory(small, SGD())
    print(plugin, laboratory, plain)
    assert abs(mean(plugin) - mean(laboratory)) < 3 * noise(plugin, laboratory)
    assert min(mean(plugin), mean(laboratory)) - mean(plain) > 3 * noise(plugin, plain)
