"""Contestants from elsewhere: a training iteration of Avalanche's strategies on the same network, data and batch."""

import contextlib
import io
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ogd.lab.bench.laboratory import BATCH, FINISHED, LR
from ogd.lab.bench.stopwatch import Contestant
from ogd.lab.models import PAPER, mlp

STEPS = 100
STORED = 200  # examples of each finished task


def contestants() -> dict[str, Contestant]:
    """Avalanche's Naive, EWC and A-GEM in the task after `FINISHED` ones; nothing where it cannot be imported."""
    try:
        with silence():
            from avalanche.training import AGEM, EWC, Naive
    except (ImportError, RuntimeError):  # RuntimeError: torchvision's operators do not fit this torch
        return {}
    return {
        "avalanche naive": _strategy(Naive, {}),
        "avalanche ewc": _strategy(EWC, {"ewc_lambda": 1.0}),
        "avalanche agem": _strategy(AGEM, {"patterns_per_exp": STORED, "sample_size": BATCH}),
    }


def _strategy(kind: Any, options: dict[str, Any]) -> Contestant:
    """A turn trains the earlier tasks and the next one, and times only the epoch of the next one."""
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.core import SupervisedPlugin

    class Stopwatch(SupervisedPlugin):  # type: ignore[misc]
        began = seconds = 0.0

        def before_training_epoch(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def after_training_epoch(self, *_: Any, **__: Any) -> None:
            self.seconds = time.perf_counter() - self.began

    def run() -> float:
        model, watch = mlp(), Stopwatch()
        with silence():
            strategy = kind(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=LR),
                criterion=torch.nn.CrossEntropyLoss(),
                plugins=[watch],
                train_mb_size=BATCH,
                train_epochs=1,
                evaluator=None,
                **options,
            )
            sizes = [STORED] * FINISHED + [STEPS * BATCH]
            for experience in benchmark_from_datasets(train=[_dataset(n) for n in sizes]).train_stream:
                strategy.train(experience)
        return watch.seconds / STEPS

    return run


def _dataset(n: int) -> Any:
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    from torch.utils.data import TensorDataset

    y = torch.randint(PAPER[-1], (n,))
    attributes = [
        DataAttribute(y.tolist(), "targets", use_in_getitem=False),
        DataAttribute([0] * n, "targets_task_labels", use_in_getitem=True),
    ]
    return AvalancheDataset([TensorDataset(torch.rand(n, PAPER[0]), y)], data_attributes=attributes)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep progress and warnings of others to themselves."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
