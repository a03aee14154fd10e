"""Projecting the gradient under Adam, or the update that Adam makes of it; `--show` prints the last measurement.

    python measurements/projection/adam.py          trains what the record lacks, on one thread: results/adam.json
    python measurements/projection/adam.py --show   prints that record as Markdown

6,000 digits per task, turned by 0°, 20° and 40°; 784-100-100-10, batches of 32, two epochs per task, a new optimizer
for each; the gradients of 200 examples per task are stored. A gradient is projected before the optimizer sees it, an
update after the optimizer has made it. Drift is the root mean square change of the stored logits of task 1's examples.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

RECORD = Path(__file__).parents[2] / "results" / "adam.json"
SEEDS, KEPT, BATCH, EPOCHS, ANGLES = (0, 1, 2), 200, 32, 2, (0, 20, 40)
OPTIMIZERS = {
    "SGD 0.05": ("SGD", 0.05),
    "Adam 0.001": ("Adam", 0.001),
    "Adam 0.0001": ("Adam", 0.0001),
    "Adagrad 0.01": ("Adagrad", 0.01),
}
WAYS = {"plain": "none", "gradient": "of the gradient", "update": "of the update: `memory.protect`"}


def trained(optimizer_name: str, way: str, seed: int) -> dict[str, Any]:
    """The accuracy on each task at the end, and how far the stored logits of task 1 have moved."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    import ogd
    from ogd.lab import benchmarks

    torch.manual_seed(seed)
    rows = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))[:6_000]
    tasks = benchmarks.rotated(angles=ANGLES).tasks
    layers = (nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    model = nn.Sequential(nn.Flatten(), *layers)
    memory = ogd.GradientMemory(model, per_task=None)
    kind, lr = OPTIMIZERS[optimizer_name]
    order = torch.Generator().manual_seed(seed)
    first: Any = None
    for task in tasks:
        x, y = task.train.x[rows], task.train.y[rows]
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
        protection = memory.protect(optimizer, every=1) if way == "update" else None
        for _ in range(EPOCHS):
            for some in torch.randperm(len(x), generator=order).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(x[some]), y[some]).backward()
                if way == "gradient" and len(memory):
                    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
                    for name, g in memory.project(named).items():
                        model.get_parameter(name).grad = g
                optimizer.step()
        if protection is not None:
            protection.unprotect()
        chosen = torch.randperm(len(x), generator=order)[:KEPT]
        kept = (x[chosen], y[chosen])
        if way != "plain":
            memory.remember(kept)
        if first is None:
            with torch.no_grad():
                first = (*kept, model(kept[0]).gather(1, kept[1][:, None]))
    with torch.no_grad():
        accuracies = [float((model(t.test.x).argmax(1) == t.test.y).double().mean()) for t in tasks]
        x, y, before = first
        drift = float((model(x).gather(1, y[:, None]) - before).square().mean().sqrt())
    return {"accuracies": accuracies, "drift": drift}


def measure() -> None:
    import warnings

    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*weights have moved")  # the gradient's way has no protection
    record: dict[str, Any] = json_files.load(RECORD) if RECORD.exists() else {"schema": 1, "seeds": SEEDS, "runs": {}}
    for name in OPTIMIZERS:
        done = record["runs"].setdefault(name, {})
        for way in (way for way in WAYS if way not in done):
            done[way] = [trained(name, way, seed) for seed in SEEDS]
            print(name, way, done[way], file=sys.stderr, flush=True)
            write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record as Markdown."""
    print("| optimizer | projection | task 1 | task 2 | task 3 | average | drift |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, ways in json_files.load(RECORD)["runs"].items():
        for way, runs in ways.items():
            columns = [[100 * a for a in column] for column in zip(*(run["accuracies"] for run in runs), strict=True)]
            columns.append([statistics.mean(column) for column in zip(*columns, strict=True)])
            cells = [mean_std(column) for column in columns]
            drift = statistics.mean(run["drift"] for run in runs)
            print(f"| {name if way == 'plain' else ''} | {WAYS[way]} | {' | '.join(cells)} | {drift:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
