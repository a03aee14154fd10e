"""What a ResNet-18, a transformer and many directions take: time, bytes and drift, written to results/sizes.json.

`python measurements/speed/sizes.py [resnet] [ratios] [transformer] [many]`. Seconds are the processor's,
on one thread, so that a busy machine does not change them much. `peak_gigabytes` is that of the whole process: run a
part alone to know its own.
"""

import copy
import json
import resource
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import ogd
from ogd import json_files
from ogd.lab.bench import sizes
from ogd.lab.bench.stopwatch import side_by_side
from ogd.lab.models import mlp


def peak() -> float:
    """Gigabytes that this process has held at most."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)


def timed(work):
    began = time.process_time()
    work()
    return round(time.process_time() - began, 2)


def measured(model: nn.Module, task, batch, **options) -> dict[str, float]:
    """Remember a task and take protected steps."""
    memory = ogd.GradientMemory(model, per_task=None, **options)
    row = {"directions": len(task[1]), "remember_seconds": timed(lambda: memory.remember(task))}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    protection = memory.protect(optimizer, every=1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    row["first_step_seconds"] = timed(step)
    row["next_step_seconds"] = timed(step)
    row["iterations"] = getattr(protection.projector.solve, "iterations", 0)
    row["kilobytes_per_direction"] = round(memory.nbytes / len(memory) / 1e3, 1)
    row["resident_gigabytes"] = round(memory.resident_nbytes / 1e9, 2)
    row["peak_gigabytes"] = peak()
    memory.unprotect()
    row["plain_step_seconds"] = timed(step)
    return row


def resnet() -> dict[str, object]:
    torch.manual_seed(0)
    return measured(sizes.resnet18(), sizes.images(200), sizes.images(32))


def ratios() -> dict[str, object]:
    times = side_by_side(sizes.contestants(), 1)
    return {key: round(times.ratio(key, *rest).median, 2) for key, *rest in sizes.RATIOS}


def transformer() -> dict[str, object]:
    """Sequences of 64 and of 32 words, in float32 and stored in bfloat16, and the drift that rounding leaves."""
    found = {}
    for length in (64, 32):
        for dtype in (None, torch.bfloat16):
            torch.manual_seed(0)
            task = torch.randint(5_000, (100, length)), torch.randint(10, (100,))
            batch = torch.randint(5_000, (32, length)), torch.randint(10, (32,))
            name = f"{length} words, {'float32' if dtype is None else 'bfloat16'}"
            found[name] = measured(sizes.Transformer(length), task, batch, dtype=dtype) | {
                "drift": drift(length, dtype)
            }
    return found


def drift(length: int, dtype: torch.dtype | None) -> float:
    """How much less remembered outputs move in 20 small steps of SGD than unprotected ones: the ratio."""
    torch.manual_seed(1)
    model = sizes.Transformer(length).eval()
    x, y = torch.randint(5_000, (40, length)), torch.randint(10, (40,))
    new, labels = torch.randint(5_000, (32, length)), torch.randint(10, (32,))
    moved = []
    for protected in (True, False):
        learner = copy.deepcopy(model)
        memory = ogd.GradientMemory(learner, per_task=200, dtype=dtype)
        memory.remember((x, y))
        optimizer = torch.optim.SGD(learner.parameters(), lr=1e-4)
        if protected:
            memory.protect(optimizer, every=1)
        with torch.no_grad():
            before = learner(x).gather(1, y[:, None])
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(learner(new), labels).backward()
            optimizer.step()
        with torch.no_grad():
            moved.append(float((learner(x).gather(1, y[:, None]) - before).norm()))
    return round(moved[0] / moved[1], 5)


def many() -> dict[str, object]:
    """The paper's network, trained on rotated digits for a moment, with ever more directions."""
    task = next(iter(ogd.lab.benchmarks.rotated(tasks=1).tasks)).train
    x, y = task.x.flatten(1).float(), task.y
    x = x / 255 if x.max() > 1.5 else x
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(1500):
        rows = torch.randint(len(x), (10,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return {f"{n:,}": measured(model, (x[:n], y[:n]), (x[-10:], y[-10:])) for n in (1_000, 5_000, 20_000)}


if __name__ == "__main__":
    path, wanted = "results/sizes.json", sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for part in (resnet, ratios, transformer, many):
        if not wanted or part.__name__ in wanted:
            found = part()
            record = json_files.load(Path(path)) if Path(path).exists() else {}
            record[part.__name__] = found
            Path(path).write_text(json.dumps(record, indent=1) + "\n")
            print(json.dumps({part.__name__: record[part.__name__]}, indent=1))
