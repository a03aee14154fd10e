"""On Avalanche's own Permuted MNIST, OGD through the plugin is the laboratory's OGD, within noise."""

import math
import struct
from statistics import mean, variance

import numpy as np
import pytest
import torch
from torch import nn

import ogd
from ogd.lab import benchmarks, data
from ogd.lab.methods import OGD, SGD
from ogd.lab.models import StackedMLP, mlp
from ogd.lab.training import train

pytest.importorskip("avalanche", reason="Avalanche is not installed: pip install 'ogd[avalanche]'")
from avalanche.benchmarks.classic import PermutedMNIST
from avalanche.training import Naive

from ogd.integrations.avalanche import OGDPlugin

RUNS, TASKS, EXAMPLES, STORED, SIZES = 5, 3, 1000, 200, (784, 50, 50, 10)
SCHEDULE = {"epochs": 5, "batch_size": 10, "lr": 0.2}


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The first images of MNIST, where torchvision looks for the files that it downloads."""
    raw = tmp_path_factory.mktemp("mnist") / "MNIST" / "raw"
    raw.mkdir(parents=True)
    mnist = data.load("mnist")
    parts = {"train": (mnist.train_images, mnist.train_labels), "t10k": (mnist.test_images, mnist.test_labels)}
    for name, (images, labels) in parts.items():
        (raw / f"{name}-images-idx3-ubyte").write_bytes(idx(np.uint8(images[:EXAMPLES])))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.uint8(labels[:EXAMPLES])))
    return raw


def in_avalanche(raw, seed, *plugins):
    """Task 1's accuracy after all tasks, trained by Avalanche."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), mlp(SIZES))
    stream = PermutedMNIST(TASKS, seed=seed, dataset_root=raw.parents[1], train_transform=None, eval_transform=None)
    strategy = Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=SCHEDULE["lr"]), criterion=nn.CrossEntropyLoss(),
        train_mb_size=SCHEDULE["batch_size"], train_epochs=SCHEDULE["epochs"], plugins=list(plugins), evaluator=None,
    )  # fmt: skip
    for experience in stream.train_stream:
        strategy.train(experience)
    return ogd.forgetting(model, {"task 1": stream.test_stream[0].dataset})["task 1"]


def in_the_laboratory(raw, method):
    benchmark = benchmarks.permuted(TASKS, dataset=data.load(raw))
    result = train(benchmark, StackedMLP(SIZES, runs=RUNS), method, progress=False, **SCHEDULE)
    return result.accuracy[:, -1, 0].tolist()


def noise(one, other):
    return math.sqrt(variance(one) / len(one) + variance(other) / len(other))


def test_ogd_through_the_plugin_is_the_laboratorys(small):
    plugin = [in_avalanche(small, seed, OGDPlugin(ogd.GradientMemory, per_task=STORED)) for seed in range(RUNS)]
    laboratory = in_the_laboratory(small, OGD(STORED))
    plain = in_the_laboratory(small, SGD())
    assert abs(mean(plugin) - mean(laboratory)) < 3 * noise(plugin, laboratory)
    assert mean(plugin) - mean(plain) > 3 * noise(plugin, plain)
