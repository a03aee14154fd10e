"""Fifty tasks under a fixed budget: what a step takes and what is stored; `--show` prints the last measurement.

    python measurements/speed/many_tasks.py          measures on one thread: results/long.json, docs/images/long.svg
    python measurements/speed/many_tasks.py --show   prints that record as Markdown

A 64-48-10 network learns 50 permutations of the same made-up task. 30 examples of each are remembered, under a budget
of 300 and with `shrink=True`, so the tenth task fills it. A twin without protection takes each step too, right
after it; a step's time is the median over a task of the ratio of both, in the processor's time.
"""

import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "long.json"
TASKS, PER_TASK, BUDGET, STEPS, BATCH = 50, 30, 300, 40, 10
KEEPS = {"gradients": "gradients, projected", "examples": "examples, rehearsed"}
FULL = BUDGET // PER_TASK  # tasks that fill the budget


def measure(keep: str) -> list[dict[str, float]]:
    """Train the tasks, protected by a memory that keeps gradients or examples, and look at it after each."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from ogd.memory import ExampleMemory, GradientMemory

    torch.manual_seed(0)
    centres = torch.randn(10, 64)
    y = torch.arange(1_000) % 10
    x = centres[y] + torch.randn(1_000, 64)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    twin = copy.deepcopy(model)
    optimizer, free = (torch.optim.SGD(net.parameters(), lr=0.05) for net in (model, twin))

    def seconds(net: nn.Module, stepping: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
        began = time.process_time()
        stepping.zero_grad()
        cross_entropy(net(x), y).backward()
        stepping.step()
        return time.process_time() - began

    kind = {"gradients": GradientMemory, "examples": ExampleMemory}[keep]
    memory = kind(model, per_task=PER_TASK, budget=BUDGET, shrink=True)
    memory.protect(optimizer)
    rows = []
    for task in range(TASKS):
        inputs = x[:, torch.randperm(64)]
        ratios = []
        for step in range(STEPS):
            batch = torch.arange(step * BATCH, (step + 1) * BATCH) % len(y)
            protected = seconds(model, optimizer, inputs[batch], y[batch])
            ratios.append(protected / seconds(twin, free, inputs[batch], y[batch]))
        began = time.process_time()
        memory.remember((inputs, y))
        remembering = time.process_time() - began
        row = {
            "task": task + 1,
            "step": statistics.median(ratios),
            "remember": remembering,
            "kept": sum(memory.task_sizes),
        }
        resident = memory.resident_nbytes if isinstance(memory, GradientMemory) else memory.nbytes
        rows.append(row | {"bytes": memory.nbytes, "resident": resident})
    return rows


def show() -> None:
    """Print what the first full memory and the last one take."""
    record = json_files.load(RECORD)
    heads = [
        "kept",
        "kept after task",
        "a step, without protection = 1",
        "stored",
        "with what is derived from it",
        "`remember`",
    ]
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for keep, label in KEEPS.items():
        for row in _tenths(record["measured"][keep]):
            cells = [label, f"{row['tasks']}: {row['kept']:,}", f"{row['step']:.1f} ×"]
            cells += [f"{row[key] / 1e3:,.0f} KB" for key in ("bytes", "resident")]
            cells.append(f"{1e3 * row['remember']:.0f} ms")
            print(f"| {' | '.join(cells)} |")


def _tenths(rows: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Medians over ten tasks each."""
    found = []
    for start in range(0, len(rows), 10):
        ten = rows[start : start + 10]
        medians = {key: statistics.median(row[key] for row in ten) for key in ten[0]}
        found.append({**medians, "tasks": f"{start + 1} … {start + 10}", "kept": ten[-1]["kept"]})
    return found


def draw() -> None:
    """Draw bytes and time over the tasks."""
    sys.path.append(str(Path(__file__).parents[1]))
    import style

    measured = json_files.load(RECORD)["measured"]
    made = style.figure(style.WIDTH, 4.6)
    above, below = made.subplots(2, 1)
    for (keep, label), colour in zip(KEEPS.items(), (style.looks.BLUE, style.looks.GREEN), strict=True):
        tasks = [row["task"] for row in measured[keep]]
        above.plot(tasks, [row["bytes"] / 1e3 for row in measured[keep]], color=colour, label=label)
        below.plot(tasks, [row["step"] for row in measured[keep]], color=colour, label=label)
    for axes, title in ((above, "stored, KB"), (below, "a step, without protection = 1")):
        axes.axvline(FULL, color=style.looks.MUTED, lw=0.8, ls=":")
        axes.set(xlabel="tasks", title=title, ylim=(0, None))
        axes.grid()
    above.legend(loc="lower right")
    above.annotate("the budget is full", (FULL, 0), (4, 6), textcoords="offset points", color=style.looks.MUTED)
    style.save(made, "long")


def main() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    measured = {keep: measure(keep) for keep in KEEPS}
    setting = {"tasks": TASKS, "per_task": PER_TASK, "budget": BUDGET, "steps": STEPS, "batch": BATCH}
    record = {"schema": 1, **setting, "measured": measured, "environment": environment()}
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    draw()
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
