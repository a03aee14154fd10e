"""Whether every="auto" keeps what every=1 keeps; `--show` prints the last measurement.

    python docs/figures/auto.py             measures; writes results/auto.json
    python docs/figures/auto.py --show      prints that record as Markdown

The paper's network learns Rotated MNIST, five tasks of 20,000 images in batches of 10, in a plain loop with
`ogd.Memory`: SGD at 0.01, one epoch per task, 200 true logits remembered after each.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[2] / "results" / "auto.json"
EXAMPLES, BATCH, LR, SEEDS = 20_000, 10, 0.01, (0, 1, 2)
WAYS = {"none": "not protected", "1": "every=1", "50": "every=50", "auto": 'every="auto"'}


def measure() -> dict[str, Any]:
    """Return the accuracy on each task at the end, and the k of each task under "auto"."""
    import torch

    from ogd import benchmarks
    from ogd.records.record import environment

    torch.set_num_threads(1)
    tasks = benchmarks.rotated(angles=[0, 10, 20, 30, 40]).tasks
    runs = []
    for seed in SEEDS:
        for way in WAYS:
            accuracies, ks = _run(tasks, way, seed)
            runs.append({"seed": seed, "way": way, "accuracies": accuracies, "every": ks})
            print(runs[-1], flush=True)
    return {"schema": 1, "runs": runs, "environment": environment()}


def _run(tasks: Any, way: str, seed: int) -> tuple[list[float], list[int]]:
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.memory import Memory
    from ogd.models import mlp

    torch.manual_seed(seed)
    network, ks = mlp(), []
    memory = Memory(network, per_task=200)
    for task in tasks:
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)
        order = torch.randperm(len(task.train))[:EXAMPLES]
        protection = None
        if way != "none":
            protection = memory.protect(optimizer, every="auto" if way == "auto" else int(way))
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            cross_entropy(network(task.train.x[batch].flatten(1)), task.train.y[batch]).backward()
            optimizer.step()
        if protection is not None:
            ks.append(protection.every)
            memory.remember((task.train.x[order].flatten(1), task.train.y[order]))
            memory.unprotect()
    with torch.no_grad():
        right = [(network(task.test.x.flatten(1)).argmax(1) == task.test.y).double().mean().item() for task in tasks]
    return right, ks


def show() -> None:
    record = json.loads(RECORD.read_text())
    print("| protection | task 1, at the end | all five tasks | k in tasks 2 … 5 |")
    print("| --- | ---: | ---: | ---: |")
    for way, label in WAYS.items():
        runs = [run for run in record["runs"] if run["way"] == way]
        first = _mean([100 * run["accuracies"][0] for run in runs])
        all_five = _mean([100 * statistics.mean(run["accuracies"]) for run in runs])
        ks = [k for run in runs for k in run["every"][1:]]
        span = "–" if not ks else f"{min(ks):,} … {max(ks):,}" if min(ks) < max(ks) else f"{ks[0]}"
        print(f"| {label} | {first} | {all_five} | {span} |")


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    if "--show" in sys.argv:
        show()
    else:
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n")
        show()
