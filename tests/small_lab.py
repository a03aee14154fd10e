"""Small trainings in float64, and every method with options that make it matter there."""

import torch

from ogd import benchmarks, methods, training
from ogd.models import StackedMLP


def make(name, dataset, tasks=2):
    options = {"partition": {2: "01234/56789", 3: "0123/456/789"}[tasks]} if name == "split" else {}
    return getattr(benchmarks, name)(tasks, dataset=dataset, **options)


def fit(benchmark, method=None, runs=2, **options):
    model = StackedMLP((benchmark.inputs, 8, 6, benchmark.outputs), runs=runs, seed=0, dtype=torch.float64)
    options = {"epochs": 2, "batch_size": 7, "lr": 0.5, "progress": False, **options}
    return model, training.train(benchmark, model, method, **options)


SCHEDULE = {"epochs": 2, "batch_size": 7, "lr": 0.5}

CASES = [
    ("sgd", methods.SGD, {}),
    ("mtl", methods.MTL, {}),
    ("agem", methods.AGEM, {"storage": 6, "reference_batch": 4}),
    ("ewc", methods.EWC, {"ewc_lambda": 3.0, "fisher_examples": 11}),
    ("ewc", methods.EWC, {"ewc_lambda": 3.0, "fisher_examples": 11, "fisher_labels": "sampled"}),
    *(
        ("ogd", methods.OGD, {"storage": 30, "logits": logits, "projection": projection})
        for logits in ("true", "mean", "all")
        for projection in ("implicit", "explicit")
    ),
]
