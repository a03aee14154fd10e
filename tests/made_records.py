"""Records of every experiment without training: cheap numbers that look like accuracies, the same every time."""

import json
from pathlib import Path

import numpy as np

from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, quick
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import Curve, RunRecord
from ogd.lab.records.record import to_json

KEPT = {
    "mtl": 0.99,
    "der": 0.98,
    "er": 0.97,
    "ogd": 0.96,
    "agem": 0.95,
    "ewc": 0.9,
    "sgd": 0.85,
}  # of an accuracy, a task later
ENVIRONMENT = {"ogd": "0.1.0", "commit": "0123456789abcdef" * 2, "torch": "2.13.0", "machine": "x86_64", "system": None}


def made(request, run, steps=120):
    """Return one record; a later task is known from its training on and then fades."""
    rng = np.random.default_rng([run, *request.key.encode()])
    kept = KEPT.get(request.method, 0.93) + 0.02 * np.log10(1 + request.options.get("ewc_lambda", 0.0))
    after = np.arange(request.tasks + 1)[:, None] - np.arange(1, request.tasks + 1)
    accuracy = np.where(after < 0, 0.12, 0.95 * kept ** np.maximum(after, 0.0)) + rng.normal(0, 0.005, after.shape)
    return RunRecord(request, run, np.clip(accuracy, 0, 1).tolist(), curve(request, rng, steps), 60.5, 2, ENVIRONMENT)


def curve(request, rng, steps):
    if request.curve_every is None:
        return None
    points = []
    for k in range(1, steps + 1):
        since = k / steps * request.tasks - np.arange(request.tasks)  # tasks since this one began
        rise = 0.95 * (1 - np.exp(-9 * np.maximum(since, 0)))
        values = rise * KEPT.get(request.method, 0.93) ** np.maximum(since - 1, 0) + rng.normal(0, 0.004, len(since))
        points.append([float(np.clip(v, 0, 1)) if s > 0 else None for v, s in zip(values, since, strict=True)])
    return Curve([k * request.curve_every for k in range(1, steps + 1)], points)


def keep(record, folder):
    """Write a record as `ogd.lab.records.write` does, without waiting for the disk."""
    path = record.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(record)))


def make(folder: Path, names=tuple(EXPERIMENTS), *, full=False, runs=None) -> Path:
    """Fill a folder with the records of these experiments, in the quick profile unless `full`."""
    dataset = load("mnist")
    for name in names:
        experiment = EXPERIMENTS[name] if full else quick(EXPERIMENTS[name])
        for trained in experiment.trained:
            for request in (request for row in trained.rows for request in requests_of(row, dataset)):
                for run in range(runs or trained.runs):
                    keep(made(request, run), folder)
    return folder
