"""A stream without tasks: digits that turn from 0° to 90°, one pass; `--show` prints the last measurement.

    python measurements/rehearsal/stream.py          trains what the record lacks, on one thread: results/stream.json
    python measurements/rehearsal/stream.py --show   prints that record as Markdown

30,000 digits, each seen once, in batches of 10; 784-100-100-10, SGD at 0.01. A reservoir of 500 examples is kept, the
same for every way. ER replays 10 of them per step with their labels, A-GEM keeps the loss of 10 from growing, and
rehearsal is `memory.observe` with `memory.protect(optimizer, every=1, batch_size=10)`.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

RECORD = Path(__file__).parents[2] / "results" / "stream.json"
SEEDS, KEPT, BATCH, N, PARTS, ANGLES = (0, 1, 2), 500, 10, 30_000, 100, (0, 30, 60, 90)
WAYS = {
    "plain": "none",
    "agem": "A-GEM, by hand",
    "er": "ER, by hand",
    "rehearsal": "`memory.observe`, rehearsal",
    "outputs": "the same, `labels=False`",
}


def trained(way: str, seed: int) -> list[float]:
    """The accuracy at each of `ANGLES` after the stream."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    import ogd
    from ogd.lab.benchmarks.rotating import rotate
    from ogd.lab.data import load

    torch.manual_seed(seed)
    digits = load()
    rows = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))[:N]
    images, labels = (torch.tensor(t) for t in (digits.train_images, digits.train_labels))
    layers = (nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    model = nn.Sequential(nn.Flatten(), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memory = ogd.ExampleMemory(model, per_task=KEPT)
    if way in ("rehearsal", "outputs"):
        memory.protect(optimizer, every=1, batch_size=BATCH, labels=way == "rehearsal")
    params = list(model.parameters())
    for part, some in enumerate(rows.split(N // PARTS)):
        turned = rotate(images[some].float() / 255, 90 * part / (PARTS - 1))
        for x, y in zip(turned.split(BATCH), labels[some].long().split(BATCH), strict=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            if way in ("agem", "er") and len(memory):
                old = torch.randperm(len(memory))[:BATCH]
                (batch,) = memory.examples.batches(old)
                reference = torch.autograd.grad(cross_entropy(model(batch.x), batch.y.long()), params)
                grads = [p.grad for p in params if p.grad is not None]
                weight = 1.0
                if way == "agem":
                    dot = sum(float((g * r).sum()) for g, r in zip(grads, reference, strict=True))
                    weight = max(-dot / sum(float(r.square().sum()) for r in reference), 0.0)
                torch._foreach_add_(grads, list(reference), alpha=weight)
            optimizer.step()
            if way != "plain":
                memory.observe(x, y)
    tests = torch.tensor(digits.test_images).float() / 255
    answers = torch.tensor(digits.test_labels)
    with torch.no_grad():
        return [float((model(rotate(tests, a)).argmax(1) == answers).double().mean()) for a in ANGLES]


def measure() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    record: dict[str, Any] = json_files.load(RECORD) if RECORD.exists() else {"schema": 1, "seeds": SEEDS, "runs": {}}
    for way in (way for way in WAYS if way not in record["runs"]):
        record["runs"][way] = [trained(way, seed) for seed in SEEDS]
        print(way, record["runs"][way], file=sys.stderr, flush=True)
        write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record as Markdown."""
    print(f"| accuracy (%) after the stream, at | {' | '.join(f'{a}°' for a in ANGLES)} | average |")
    print("| --- |" + " ---: |" * (len(ANGLES) + 1))
    for way, runs in json_files.load(RECORD)["runs"].items():
        columns = [[100 * a for a in column] for column in zip(*runs, strict=True)]
        columns.append([statistics.mean(column) for column in zip(*columns, strict=True)])
        cells = [mean_std(column) for column in columns]
        print(f"| {WAYS[way]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
