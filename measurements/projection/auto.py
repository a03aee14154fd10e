"""Whether every="auto" keeps what projecting every step keeps; `--show` prints the last measurement.

    python measurements/projection/auto.py          measures; writes results/auto.json
    python measurements/projection/auto.py --show   prints that record as Markdown

The paper's network, learning rate 0.001 and batch 10 on Rotated MNIST (0° … 40°), five tasks of two epochs each, 200
true logits remembered after each. Every step: the laboratory's OGD. "auto": a plain loop with `ogd.GradientMemory`.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

RECORD = Path(__file__).parents[2] / "results" / "auto.json"
EPOCHS, BATCH, LR, SEEDS = 2, 10, 0.001, (0, 1, 2)
WAYS = {"1": "every step", "auto": 'every="auto"'}


def measure() -> dict[str, Any]:
    """Return the accuracy on each task at the end, and the k of each task under "auto"."""
    import torch

    from ogd.lab import benchmarks
    from ogd.lab.methods import OGD
    from ogd.lab.models import StackedMLP
    from ogd.lab.records.record import environment
    from ogd.lab.training import train

    torch.set_num_threads(1)
    benchmark = benchmarks.rotated(angles=[0, 10, 20, 30, 40])
    runs = []
    for seed in SEEDS:
        accuracies, ks = _run(benchmark.tasks, seed)
        runs.append({"seed": seed, "way": "auto", "accuracies": accuracies, "every": ks})
        print(runs[-1], flush=True)
    result = train(
        benchmark, StackedMLP(runs=len(SEEDS)), OGD(200), epochs=EPOCHS, batch_size=BATCH, lr=LR, progress=False
    )
    runs += [
        {"seed": seed, "way": "1", "accuracies": accuracies.tolist(), "every": []}
        for seed, accuracies in zip(SEEDS, result.final_accuracy, strict=True)
    ]
    return {"schema": 1, "runs": runs, "environment": environment()}


def _run(tasks: Any, seed: int) -> tuple[list[float], list[int]]:
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.lab.models import mlp
    from ogd.memory import GradientMemory

    torch.manual_seed(seed)
    network, ks = mlp(), []
    memory = GradientMemory(network, per_task=200)
    for task in tasks:
        x, y = task.train.x.flatten(1), task.train.y
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)
        protection = memory.protect(optimizer, every="auto")
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(y)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
        ks.append(protection.every)
        memory.remember((x, y))
        memory.unprotect()
    with torch.no_grad():
        right = [(network(task.test.x.flatten(1)).argmax(1) == task.test.y).double().mean().item() for task in tasks]
    return right, ks


def show() -> None:
    record = json_files.load(RECORD)
    print("| protection | task 1, at the end | task 5 | all five tasks | k, in tasks 2 … 5 |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for way, label in WAYS.items():
        runs = [run for run in record["runs"] if run["way"] == way]
        shown = [lambda a: a[0], lambda a: a[-1], statistics.mean]
        cells = [mean_std([100 * of(run["accuracies"]) for run in runs]) for of in shown]
        ks = [k for run in runs for k in run["every"][1:]]
        span = f"{min(ks):,} … {max(ks):,}" if ks else "1"
        print(f"| {label} | {' | '.join(cells)} | {span} |")


if __name__ == "__main__":
    if "--show" in sys.argv:
        show()
    else:
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n")
        show()
