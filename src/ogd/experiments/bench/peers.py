"""Contestants from elsewhere: a training iteration of Avalanche's strategies on the same network, data and batch."""

import contextlib
import io
import time
import warnings
from typing import Any

import torch

from ogd.experiments.bench.laboratory import BATCH, FINISHED, LR
from ogd.experiments.bench.stopwatch import Contestant
from ogd.models import PAPER, mlp

STEPS = 100


def contestants() -> dict[str, Contestant]:
    """Avalanche's Naive, EWC and A-GEM in the task after `FINISHED` ones; nothing where it cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from avalanche.training import AGEM, EWC, Naive  # type: ignore[import-not-found]
    except (ImportError, RuntimeError):  # RuntimeError: torchvision's operators do not fit this torch
        return {}
    return {
        "avalanche naive": _strategy(Naive, {}),
        "avalanche ewc": _strategy(EWC, {"ewc_lambda": 1.0}),
        "avalanche agem": _strategy(AGEM, {"patterns_per_exp": 200, "sample_size": BATCH}),
    }


def _strategy(kind: Any, options: dict[str, Any]) -> Contestant:
    from avalanche.benchmarks import benchmark_from_datasets  # type: ignore[import-not-found]
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute  # type: ignore[import-not-found]
    from torch.utils.data import TensorDataset

    def experience() -> Any:
        n = STEPS * BATCH
        y = torch.randint(PAPER[-1], (n,))
        data = TensorDataset(torch.rand(n, PAPER[0]), y)
        attributes = [
            DataAttribute(y.tolist(), "targets", use_in_getitem=False),
            DataAttribute([0] * n, "targets_task_labels", use_in_getitem=True),
        ]
        return AvalancheDataset([data], data_attributes=attributes)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    quiet = {"train_mb_size": BATCH, "train_epochs": 1, "evaluator": None}
    strategy = kind(model=model, optimizer=optimizer, criterion=torch.nn.CrossEntropyLoss(), **quiet, **options)
    stream = benchmark_from_datasets(train=[experience() for _ in range(FINISHED + 1)]).train_stream

    def train(number: int) -> float:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strategy.train(stream[number])
        return time.perf_counter() - began

    for number in range(FINISHED):
        train(number)
    return lambda: train(FINISHED) / STEPS
