"""Thousands of gradients, softly projected: what they keep of validation data, and what they cost; `--show` prints it.

    python measurements/projection/gradients.py          measures the costs on one thread: results/gradients.json
    python measurements/projection/gradients.py --show   prints that record, and those of `ogd tune`, as Markdown

The paper's network, SGD, batch 10. The costs are those of the fifth task, with gradients of four tasks stored.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.records import tuning

RESULTS = Path(__file__).parents[2] / "results"
RECORD, TUNINGS = RESULTS / "gradients.json", RESULTS / "tuning" / "gradients"
NUMBERS, TASKS, BATCH, LR, STEPS, TIMES = (200, 500, 1000, 2000), 4, 10, 5e-3, 1000, 5
MOST = 1.3  # times an unprotected step


def measure() -> None:
    """Measure the costs and write the record."""
    import torch

    from ogd.files import write_text
    from ogd.lab.data import load
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    dataset = load("mnist")
    x, y = torch.tensor(dataset.train_images).flatten(1) / 255, torch.tensor(dataset.train_labels).long()
    rows = []
    for n in NUMBERS:
        rows.append(_costs(n, x, y))
        print(rows[-1], file=sys.stderr, flush=True)
    write_text(RECORD, json.dumps({"schema": 1, "rows": rows, "environment": environment()}, indent=1) + "\n")


def _costs(n: int, x: Any, y: Any) -> dict[str, float]:
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.lab.models import mlp
    from ogd.memory import GradientMemory

    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def train(steps: int) -> None:
        for i in range(steps):
            rows = slice(i * BATCH % len(y), i * BATCH % len(y) + BATCH)
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

    train(STEPS)
    step = _seconds(lambda: train(STEPS)) / STEPS
    memory = GradientMemory(model, per_task=n, softness=0.05)
    memory.protect(optimizer, every=10**6)
    added = []
    for task in range(TASKS):
        mine = slice(task * 10_000, (task + 1) * 10_000)

        def remember(mine: slice = mine) -> None:
            memory.remember((x[mine], y[mine]))
            train(1)

        added.append(_seconds(remember) - step)
        memory.settle()

    def project() -> None:
        train(1)
        memory.settle()

    projection = statistics.median(_seconds(project) for _ in range(TIMES)) - step
    return {"per_task": n, "bytes": memory.nbytes / TASKS, "step": step, "projection": projection, "added": added[-1]}


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def show() -> None:
    """Print both tables as Markdown."""
    print("| gradients per task | per task | a projection | every k steps for 1.3 × | adding the fourth task |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for row in json_files.load(RECORD)["rows"]:
        k = row["projection"] / ((MOST - 1) * row["step"])
        print(
            f"| {row['per_task']:,} | {row['bytes'] / 1e6:.1f} MB | {row['projection'] / row['step']:.0f} steps | "
            f"{k:.0f} | {row['added'] / row['step']:,.0f} steps |"
        )
    found: dict[tuple[str, int, int], dict[float, str]] = {}
    for path in sorted(TUNINGS.glob("ogd-*.json")):
        one = tuning.read(path)
        options = one.request.options
        line = found.setdefault((one.request.benchmark, int(options["per_task"]), int(options["every"])), {})
        line |= {mu: f"{100 * mean:.1f}" for mu, mean in zip(one.grid, one.means, strict=True) if mean is not None}
    values = sorted({mu for line in found.values() for mu in line})
    print(f"\n| validation accuracy (%) | {' | '.join(f'μ = {mu:g}' for mu in values)} |")
    print("| --- |" + " ---: |" * len(values))
    for (benchmark, n, every), line in sorted(found.items()):
        cells = " | ".join(line.get(mu, "") for mu in values)
        print(f"| {benchmark.capitalize()}, {n:,} per task, every {every} | {cells} |")


if __name__ == "__main__":
    show() if "--show" in sys.argv[1:] else measure()
