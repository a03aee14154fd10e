"""Two ranks against one process: how far their weights are apart, and what each rank keeps.

    python measurements/frameworks/distributed.py          measures with two processes; writes results/distributed.json
    python measurements/frameworks/distributed.py --show   prints that record as Markdown

The paper's network learns 12,000 digits, 200 of them are remembered, and 50 steps follow on digits turned by 40°, with
a batch of 20 in one process and of 10 on each of two ranks (gloo, DistributedDataParallel). Times are wall times of 50
steps, protected and not in turns; the ratio's median over the turns.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "distributed.json"
STORED, STEPS, BATCH, TURNS = 200, 50, 20, 9
CASES: dict[str, dict[str, Any]] = {
    "each rank its own memory (`distributed=False`)": {"distributed": False, "give": "part"},
    "each rank its part of the data": {"give": "part"},
    "all data on each rank": {"give": "all"},
    "each rank its part, `sharded=True`": {"give": "part", "sharded": True},
    "each rank its part, `sharded=True`, ZeRO-1": {"give": "part", "sharded": True, "zero": True},
}


def trained(give: str, zero: bool = False, ranks: int = 2, rank: int = 0, **options: Any) -> dict[str, Any]:
    """One rank's 50 protected steps (or one process's): its weights, its bytes and its steps' times."""
    import torch
    from torch import nn

    from ogd.memory import GradientMemory

    first, second = _digits()
    model = _learned(first)
    call: nn.Module = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = _optimizer(model, zero)
    memory = GradientMemory(model, per_task=None, **options)
    part = slice(rank, STORED, ranks) if give == "part" else slice(STORED)
    memory.remember((first[0][part], first[1][part]))
    memory.protect(optimizer, every=1)
    _steps(call, optimizer, second, rank, ranks)
    result = {"weights": torch.cat([p.detach().flatten() for p in model.parameters()])}
    result |= {"stored": memory.nbytes, "resident": memory.resident_nbytes, "directions": len(memory)}
    free = _optimizer(model, zero)

    def protected_steps(every: int) -> float:
        memory.unprotect()
        memory.protect(optimizer, every=every)
        _steps(call, optimizer, second, rank, ranks)  # until the first projection, which makes the projector
        return _steps(call, optimizer, second, rank, ranks)

    turns = []
    for _ in range(TURNS if ranks > 1 else 0):
        plain = _steps(call, free, second, rank, ranks)
        turns.append((protected_steps(1) / plain, protected_steps(STEPS) / plain))
    return result | {f"every_{k}": [turn[i] for turn in turns] for i, k in enumerate((1, STEPS))}


def _optimizer(model: Any, zero: bool) -> Any:
    import torch

    if not zero:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)


def _digits() -> Any:
    from ogd.lab import data
    from ogd.lab.benchmarks import rotate
    from ogd.lab.benchmarks.task import labels, pixels

    mnist = data.load("mnist")
    images, y = pixels(mnist.train_images[:12_000]), labels(mnist.train_labels[:12_000])
    return (images.flatten(1), y), (rotate(images[: STEPS * BATCH], 40).flatten(1), y[: STEPS * BATCH])


def _learned(task: Any) -> Any:
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.lab.models import mlp

    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.arange(12_000).split(20):
        optimizer.zero_grad()
        cross_entropy(model(task[0][batch]), task[1][batch]).backward()
        optimizer.step()
    return model


def _steps(model: Any, optimizer: Any, task: Any, rank: int, ranks: int) -> float:
    from torch.nn.functional import cross_entropy

    began = time.perf_counter()
    for start in range(0, STEPS * BATCH, BATCH):
        batch = slice(start + rank, start + BATCH, ranks)
        optimizer.zero_grad()
        cross_entropy(model(task[0][batch]), task[1][batch]).backward()
        optimizer.step()
    return time.perf_counter() - began


def _rank(rank: int, ranks: int, folder: str, options: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks)
    torch.save(trained(ranks=ranks, rank=rank, **options), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def measure(options: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """Compare two ranks with one another and with one process."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (2, folder, options), nprocs=2)
        one, two = (torch.load(Path(folder) / f"{rank}.pt") for rank in (0, 1))
    return {
        "directions": one["directions"],
        "between_ranks": (one["weights"] - two["weights"]).abs().max().item(),
        "to_one_process": (one["weights"] - alone["weights"]).abs().max().item(),
        **{key: max(one[key], two[key]) for key in ("stored", "resident")},
        **{key: statistics.median(one[key]) for key in ("every_1", f"every_{STEPS}")},
    }


def show() -> None:
    """Print the record as Markdown."""
    heads = ["two ranks", "directions", "rank 0 − rank 1", "rank 0 − one process", "stored per rank", "resident"]
    heads += ["a step, every=1", f"every={STEPS}"]
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    record = json_files.load(RECORD)
    for case, row in record["measured"].items():
        cells = [case, f"{row['directions']:,}"]
        cells += [f"{row[key]:.1e}" if row[key] else "0" for key in ("between_ranks", "to_one_process")]
        cells += [f"{row[key]:,} B" for key in ("stored", "resident")]
        cells += [f"{row[key]:.2f} ×" for key in ("every_1", f"every_{STEPS}")]
        print(f"| {' | '.join(cells)} |")
    alone = record["one_process"]
    print(f"\nOne process stores {alone['stored']:,} B, resident {alone['resident']:,} B.")


def main() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    alone = trained("all", ranks=1)
    measured = {}
    for case, options in CASES.items():
        measured[case] = measure(options, alone)
        print(case, measured[case], file=sys.stderr)
    one = {key: alone[key] for key in ("directions", "stored", "resident")}
    record = {"schema": 1, "steps": STEPS, "one_process": one, "measured": measured, "environment": environment()}
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
