"""Small trainings in float64, and every method with options that make it matter there."""

import torch
from torch import nn

from ogd.lab import benchmarks, methods, training
from ogd.lab.models import StackedMLP, StackedModules


def make(name, dataset, tasks=2):
    options = {"partition": {2: "01234/56789", 3: "0123/456/789"}[tasks]} if name == "split" else {}
    return getattr(benchmarks, name)(tasks, dataset=dataset, **options)


def small_cnn():
    """For images of 6 × 5 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 10)
    )


def stack(kind="mlp", runs=2, dtype=torch.float64):
    """An "mlp", one of "weights" alone, or a "cnn"."""
    if kind != "cnn":
        return StackedMLP((30, 8, 6, 10), runs=runs, seed=0, biases=kind == "mlp", dtype=dtype)
    return StackedModules.made(small_cnn, runs=runs, dtype=dtype)


def fit(benchmark, method=None, runs=2, kind="mlp", **options):
    model = stack(kind, runs)
    options = {"epochs": 2, "batch_size": 7, "lr": 0.5, "progress": False, **options}
    return model, training.train(benchmark, model, method, **options)


def weights(model):
    return list(model.params.values())


SCHEDULE = {"epochs": 2, "batch_size": 7, "lr": 0.5}

CASES = [
    ("sgd", methods.SGD, {}),
    ("mtl", methods.MTL, {}),
    ("agem", methods.AGEM, {"per_task": 6, "reference_batch": 4}),
    ("er", methods.ER, {"per_task": 6, "replay_batch": 4}),
    ("der", methods.DER, {"per_task": 6, "replay_batch": 4, "alpha": 0.7}),
    ("er", methods.ER, {"per_task": 6, "replay_batch": 4, "replay_every": 3}),
    ("agem", methods.AGEM, {"in_total": 11, "reference_batch": 4}),
    ("der", methods.DER, {"in_total": 11, "replay_batch": 4, "alpha": 0.7, "replay_every": 3}),
    (
        "rehearsal",
        methods.Rehearsal,
        {"per_task": 6, "replay_batch": 4, "alpha": 0.7, "replay_every": 2, "bound": 1.1},
    ),
    ("rehearsal", methods.Rehearsal, {"in_total": 11, "replay_batch": 40, "alpha": 0.7, "replay_every": 3, "bound": 0}),
    ("ewc", methods.EWC, {"ewc_lambda": 3.0, "fisher_examples": 11}),
    ("ewc", methods.EWC, {"ewc_lambda": 3.0, "fisher_examples": 11, "fisher_labels": "sampled"}),
    ("ogd", methods.OGD, {"per_task": 30, "refresh": 3}),
    ("ogd", methods.OGD, {"in_total": 30}),
    ("ogd", methods.OGD, {"per_task": 10, "outputs": "all", "directions": "leverage", "candidates": 40}),
    *(
        ("ogd", methods.OGD, {"directions": directions, "candidates": 25, **limit})
        for directions in ("leverage", "pca", "sketch")
        for limit in ({"per_task": 8}, {"in_total": 12})
    ),
    ("gpm", methods.GPM, {"threshold_input": 0.9, "threshold": 0.95, "basis_examples": 20}),
    ("gpm", methods.GPM, {"threshold_input": 0.8, "threshold": 0.9, "threshold_growth": 0.03, "basis_examples": 20}),
    *(
        ("ogd", methods.OGD, {"per_task": 30, "outputs": outputs, "projection": projection})
        for outputs in ("true", "mean", "all")
        for projection in ("implicit", "explicit")
    ),
]
