"""The paper's network in a user's own loop, protected by exactly the calls that the tables name; `--show` prints it.

    python measurements/choosing/own_loop.py          trains what is lacking, on one thread: results/own_loop.json
    python measurements/choosing/own_loop.py --show   prints that record as Markdown

Five tasks of MNIST, one epoch of SGD at 0.005 in batches of 10, from the weights and in the order of the laboratory's
runs 0 to 4 (`ogd reproduce worlds`). All defaults are the library's. Runs of other defaults are trained again.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ogd.lab.benchmarks import Benchmark

RECORD = Path(__file__).parents[2] / "results" / "own_loop.json"
SEEDS, LR, BATCH, HIDDEN, TASKS = range(5), 5e-3, 10, (100, 100), 5
BENCHMARKS = {  # as the columns of `ogd reproduce worlds`
    "Rotated": ("rotated", {}),
    "Permuted": ("permuted", {}),
    "Split": ("split", {}),
    "Split, one softmax": ("split", {"heads": "single"}),
}
MEMORIES = {"default": "ExampleMemory", "gradient": "GradientMemory", "paper": "GradientMemory"}
CALLS = {
    "default": "`ExampleMemory(model)`",
    "gradient": "`GradientMemory(model)`",
    "paper": "`GradientMemory(model, per_task=200)`, `every=1`",
}
Told = Callable[[int, str], None]  # steps done, and what is being done
Part = tuple["Tensor", "Tensor"]


def loss(model: "nn.Module", x: "Tensor", y: "Tensor", classes: "tuple[int, ...] | None") -> "Tensor":
    """The cross-entropy over the classes of the task's head."""
    import torch
    from torch.nn.functional import cross_entropy

    if classes is None:
        return cross_entropy(model(x), y)
    return cross_entropy(model(x)[:, list(classes)], torch.searchsorted(torch.tensor(classes), y))


def accuracy(model: "nn.Module", x: "Tensor", y: "Tensor", classes: "tuple[int, ...] | None") -> float:
    import torch

    known = torch.tensor(classes or range(10))
    with torch.no_grad():
        return float((known[model(x)[:, known].argmax(1)] == y).double().mean())


def parts(benchmark: "Benchmark", seed: int) -> list[tuple[Part, Part, "tuple[int, ...] | None"]]:
    """Each task's training and test data as run `seed` sees them, and the classes of its head."""
    found = []
    for task in benchmark.tasks:
        columns = task.columns([seed])
        seen = [(one.x.flatten(1), one.y) for one in (task.train, task.test)]
        train, test = [(x if columns is None else x[:, columns[0]], y) for x, y in seen]
        found.append((train, test, task.classes))
    return found


def trained(name: str, kind: str, seed: int, left_out: int = 0, told: Told = lambda done, note: None) -> dict[str, Any]:
    """Return the accuracy on each task after each task, and the seconds of the training steps."""
    import torch

    import ogd
    from ogd.lab import benchmarks
    from ogd.lab.models.build import build

    rule, settings = BENCHMARKS[name]
    benchmark = getattr(benchmarks, rule)(TASKS, left_out=left_out, **settings)
    model = build("mlp", benchmark, hidden=HIDDEN, runs=[seed], init="glorot").module(seed)
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    made, protected = ({"per_task": 200}, {"every": 1}) if kind == "paper" else ({}, {})
    memory: Any = getattr(ogd, MEMORIES[kind])(model, **made)
    memory.protect(optimizer, **protected)
    matrix, seconds = [], 0.0
    tasks = parts(benchmark, seed)
    for number, ((x, y), _, classes) in enumerate(tasks, 1):
        began = time.process_time()
        for step, rows in enumerate(torch.randperm(len(y), generator=order).split(BATCH), 1):
            optimizer.zero_grad()
            loss(model, x[rows], y[rows], classes).backward()
            optimizer.step()
            if step % 100 == 0:
                told(100, f"{name}, {kind}, seed {seed}, task {number}/{TASKS}")
        seconds += time.process_time() - began
        if classes is None:
            memory.remember((x, y))
        else:
            memory.remember((x, y), classes=classes)
        matrix.append([round(accuracy(model, *test, known), 6) for _, test, known in tasks])
    return {"accuracy": matrix, "seconds": round(seconds, 2)}


def lacking(record: dict[str, Any], defaults: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Return each benchmark, memory and seed that is not recorded with these defaults, a seed of all at a time."""
    return [
        (name, kind, seed)
        for seed in SEEDS
        for kind in MEMORIES
        for name in BENCHMARKS
        if record["runs"].get(name, {}).get(kind, {}).get(str(seed), {}).get("defaults") != defaults[kind]
    ]


def measure() -> None:
    import torch

    import ogd
    from ogd.files import write_text
    from ogd.lab.progress import Display
    from ogd.lab.records.record import environment

    sys.path.append(str(Path(__file__).parents[1]))
    import defaults

    torch.set_num_threads(1)
    record: dict[str, Any] = json_files.load(RECORD) if RECORD.exists() else {"schema": 1, "runs": {}}
    today = {kind: defaults.of(getattr(ogd, memory), kind) for kind, memory in MEMORIES.items()}
    missing = lacking(record, today)
    steps = {name: 60_000 * (1 if rule == "split" else TASKS) // BATCH for name, (rule, _) in BENCHMARKS.items()}
    with Display("own_loop.py") as display:
        display.start(sum(steps[name] for name, _, _ in missing))
        for name, kind, seed in missing:
            found = trained(name, kind, seed, told=display.advance)
            runs = record["runs"].setdefault(name, {}).setdefault(kind, {})
            runs[str(seed)] = {**found, "defaults": today[kind]}
            print(name, kind, seed, [round(100 * a, 1) for a in found["accuracy"][-1]], file=sys.stderr)
            write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def averages(record: dict[str, Any], name: str, kind: str) -> list[float]:
    """Return the average accuracy (%) over the tasks after the last, for each run."""
    runs = record["runs"].get(name, {}).get(kind, {}).values()
    return [100 * statistics.mean(run["accuracy"][-1]) for run in runs]


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    print(f"| | {' | '.join(BENCHMARKS)} |\n| --- |{' ---: |' * len(BENCHMARKS)}")
    for kind, call in CALLS.items():
        found = [averages(record, name, kind) for name in BENCHMARKS]
        print(f"| {call} | {' | '.join(mean_std(runs) if runs else '–' for runs in found)} |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
