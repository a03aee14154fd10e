"""What protection costs as the memory or the network grows; `--show` prints the tables of the last measurement.

    python measurements/speed/growth.py          measures, on one thread, and writes results/growth.json
    python measurements/speed/growth.py --show   prints that record as Markdown

The network is 784-width-width-10 on MNIST, batch 10, SGD. Plain and protected steps take turns in one process; each
figure is the median over the turns of the ratio of a protected step's time to a plain one's. Time is the processor's,
which on one thread is what an idle machine's clock would show, and depends less on who else is at work.
"""

import copy
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "growth.json"
DIRECTIONS, WIDTHS = (100, 200, 400, 800, 1600, 3200), (100, 200, 400, 800, 1600)
BATCH, STEPS, REPEATS = 10, 50, 9
RATIOS = ("every_1", "every_50")


def measure(n: int, width: int) -> dict[str, Any]:
    """Measure a memory of n directions of a network of this width."""
    import torch
    from torch.nn import functional as F

    from ogd.lab import data
    from ogd.lab.benchmarks.task import labels, pixels
    from ogd.lab.models import mlp
    from ogd.memory import GradientMemory

    mnist = data.load("mnist")
    x, y = pixels(mnist.train_images).flatten(1), labels(mnist.train_labels)
    torch.manual_seed(0)
    protected = mlp((784, width, width, 10))
    plain = copy.deepcopy(protected)

    def seconds(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
        began = time.process_time()
        for a in range(0, steps * BATCH, BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[a : a + BATCH]), y[a : a + BATCH]).backward()
            optimizer.step()
        return (time.process_time() - began) / steps

    free, bound = (torch.optim.SGD(model.parameters(), lr=1e-3) for model in (plain, protected))
    seconds(plain, free, STEPS)
    seconds(protected, bound, STEPS)
    memory = GradientMemory(protected, per_task=None)
    memory.protect(bound, every=1)
    began = time.process_time()
    memory.remember((x[-n:], y[-n:]))
    seconds(protected, bound, 1)  # K and its eigenvalues, once per task
    once = time.process_time() - began

    def protected_seconds(every: int) -> float:
        memory.unprotect()
        memory.protect(bound, every=every)
        seconds(protected, bound, every)  # until the first projection, which makes the projector
        return seconds(protected, bound, STEPS)

    turns = []
    for _ in range(REPEATS):
        each, at_every_step, now_and_then = seconds(plain, free, STEPS), protected_seconds(1), protected_seconds(STEPS)
        turns.append({"every_1": at_every_step / each, "every_50": now_and_then / each, "once": once / each})
    parameters = sum(p.numel() for p in protected.parameters())
    return {
        "directions": n,
        "width": width,
        "parameters": parameters,
        "rank": memory.rank,
        **{key: _spread([turn[key] for turn in turns]) for key in turns[0]},
        "disk_bytes": _bytes_on_disk(memory),
        "dense_bytes": 4 * n * parameters,
        "resident_bytes": memory.resident_nbytes,
    }


def show() -> None:
    """Print the record as Markdown: growth in n, then in width."""
    rows = json_files.load(RECORD)["measured"]
    for title, key, fixed, value in (
        ("directions n", "directions", "width", 100),
        ("hidden width", "width", "directions", 400),
    ):
        chosen = sorted((row for row in rows if row[fixed] == value), key=lambda row: row[key])
        _table(chosen, title, key)
        _growth(chosen[0], chosen[-1], title, key)


def _table(rows: list[dict[str, Any]], title: str, key: str) -> None:
    heads = [title, "numbers p", "a step, every=1", "a step, every=50", "once per task", "on disk", "dense", "resident"]
    print(f"| {' | '.join(heads)} |\n|{' ---: |' * len(heads)}")
    for row in rows:
        ratios = [f"{row[k]['median']:.2f} × ({row[k]['low']:.2f} … {row[k]['high']:.2f})" for k in RATIOS]
        sizes = [f"{row[k] / 1e6:,.1f} MB" for k in ("disk_bytes", "dense_bytes", "resident_bytes")]
        once = f"{row['once']['median']:,.0f} steps"
        cells = [f"{row[key]:,}", f"{row['parameters']:,}", *ratios, once, *sizes]
        print(f"| {' | '.join(cells)} |")


def _growth(first: dict[str, Any], last: dict[str, Any], title: str, key: str) -> None:
    """Say how much each column grew from the first row to the last."""

    def times(k: str) -> str:
        return f"{last[k] / first[k]:.0f} times"

    p = f"p {times('parameters')}" if key == "width" else "p the same"
    extra = (last["every_1"]["median"] - 1) / (first["every_1"]["median"] - 1)
    print(
        f"\nFrom {first[key]:,} to {last[key]:,} ({title}, {times(key)}; {p}): what protection "
        f"adds to a step, in unprotected steps, grew {extra:.1f} times, bytes on disk {times('disk_bytes')}, dense "
        f"{times('dense_bytes')}, resident {times('resident_bytes')}.\n"
    )


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _bytes_on_disk(memory: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.safetensors"
        memory.save(path)
        return path.stat().st_size


def main() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    measure(10, WIDTHS[0])  # what torch does only once should not count
    sizes = [(n, WIDTHS[0]) for n in DIRECTIONS] + [(400, width) for width in WIDTHS if width != WIDTHS[0]]
    measured = []
    for n, width in sizes:
        measured.append(measure(n, width))
        print(measured[-1], file=sys.stderr)
    record = {"schema": 1, "batch": BATCH, "repeats": REPEATS, "measured": measured, "environment": environment()}
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
