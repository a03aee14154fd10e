"""Three tasks in a user's own loop, by several kinds of protection; `--show` prints the last measurement.

    python measurements/rehearsal/rehearsal.py          trains what is lacking, on one thread: results/rehearsal.json
    python measurements/rehearsal/rehearsal.py --show   prints that record as Markdown

Images: 6,000 digits per task, turned by 0°, 40° and 80°, a CNN of LeNet's size. Texts: 4,000 sequences of 16 words per
task, each task with words of its own and some of the last one's; a transformer of 2 × 64. Adam at 0.001, batches of 32,
three epochs per task, 200 examples of each task kept. ER by hand adds the cross-entropy of as many kept examples.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

RECORD = Path(__file__).parents[2] / "results" / "rehearsal.json"
SEEDS, KEPT, BATCH, EPOCHS, LR = (0, 1, 2), 200, 32, 3, 1e-3
MODELS = {"cnn": "CNN, turned digits", "transformer": "transformer, texts"}
WAYS = {
    "plain": "no protection",
    "projection": '`GradientMemory`, `every="auto"`',
    "replay": "ER by hand, 32 every step",
    "rehearsal": "`ExampleMemory`, 32 every step",
    "default": "`ExampleMemory`, default: 32 every 2 steps",
    "uncertain": '`ExampleMemory`, default, `choose="uncertain"`',
    "merged": '`ExampleMemory`, default, `choose="uncertain", merge=5`',
    "sparing": "`ExampleMemory`, `every=5, alpha=0.2`",
}
Data = tuple[Any, Any]


def images(seed: int) -> list[tuple[Data, Data]]:
    """Three tasks, each its training data and its test data."""
    import torch

    from ogd.lab import benchmarks

    rows = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))[:6_000]
    tasks = benchmarks.rotated(angles=[0, 40, 80]).tasks
    return [
        ((t.train.x[rows].view(-1, 1, 28, 28), t.train.y[rows]), (t.test.x.view(-1, 1, 28, 28), t.test.y))
        for t in tasks
    ]


def texts(seed: int) -> list[tuple[Data, Data]]:
    """Words 60 t … 60 t + 119 in task t. Each word is of one of five topics, the label is the main one."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    topic = torch.randint(5, (240,), generator=generator)

    def examples(task: int, n: int) -> Data:
        x = torch.randint(120, (n, 16), generator=generator) + 60 * task
        votes = torch.nn.functional.one_hot(topic[x], 5).sum(1).double()
        return x, (votes + torch.rand(n, 5, generator=generator, dtype=torch.float64) / 2).argmax(1)

    return [(examples(t, 4_000), examples(t, 2_000)) for t in range(3)]


def cnn() -> Any:
    from ogd.lab.models import cnn as lenet

    return lenet()


def transformer() -> Any:
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(240, 64), nn.Parameter(torch.randn(16, 64) * 0.02)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
            self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.words(x) + self.places).mean(1))

    return Reader()


def trained(name: str, way: str, seed: int) -> dict[str, Any]:
    """The accuracy on each task at the end, and the seconds of the training steps."""
    import torch
    from torch.nn.functional import cross_entropy

    import ogd

    torch.manual_seed(seed)
    tasks: list[tuple[Data, Data]] = {"cnn": images, "transformer": texts}[name](seed)
    model: Any = {"cnn": cnn, "transformer": transformer}[name]()
    memory: Any = (ogd.GradientMemory if way == "projection" else ogd.ExampleMemory)(model, per_task=KEPT)
    kept: list[Data] = []
    order, drawing = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    seconds = 0.0
    protect: dict[str, Callable[[Any], Any]] = {
        "projection": lambda optimizer: memory.protect(optimizer, every="auto"),
        "rehearsal": lambda optimizer: memory.protect(optimizer, every=1, batch_size=BATCH),
        "default": memory.protect,
        "uncertain": memory.protect,
        "merged": memory.protect,
        "sparing": lambda optimizer: memory.protect(optimizer, every=5, alpha=0.2),
    }
    for (x, y), _ in tasks:
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        protection = protect[way](optimizer) if way in protect else None
        model.train()
        began = time.process_time()
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x), generator=order).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(x[rows]), y[rows]).backward()
                if way == "replay" and kept:
                    old, labels = (torch.cat(part) for part in zip(*kept, strict=True))
                    some = torch.randperm(len(old), generator=drawing)[:BATCH]
                    cross_entropy(model(old[some]), labels[some]).backward()
                optimizer.step()
        seconds += time.process_time() - began
        if protection is not None:
            protection.unprotect()
        chosen = torch.randperm(len(x), generator=order)[:KEPT]
        kept.append((x[chosen], y[chosen]))
        if way in ("uncertain", "merged"):
            memory.remember((x, y), choose="uncertain", merge=5 if way == "merged" else 1, generator=order)
        elif way in protect:
            memory.remember((x[chosen], y[chosen]))
    model.eval()
    with torch.no_grad():
        accuracies = [float((model(x).argmax(1) == y).double().mean()) for _, (x, y) in tasks]
    return {"accuracies": accuracies, "seconds": seconds}


def measure() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    record: dict[str, Any] = {"schema": 1, "seeds": SEEDS, "models": {name: {} for name in MODELS}}
    if RECORD.exists():
        record = json_files.load(RECORD)
    for name in MODELS:
        missing = [way for way in WAYS if way not in record["models"][name]]
        for way in (way for way in missing if (name, way) != ("transformer", "merged")):  # words have no mean
            found = record["models"][name][way] = [trained(name, way, seed) for seed in SEEDS]
            print(name, way, [[round(100 * a, 1) for a in run["accuracies"]] for run in found], file=sys.stderr)
            write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    print("| | | task 1 | task 2 | task 3 | average | time of plain training |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, title in MODELS.items():
        if "plain" not in record["models"][name]:
            continue
        plain = statistics.median(run["seconds"] for run in record["models"][name]["plain"])
        for way, label in WAYS.items():
            runs = record["models"][name].get(way)
            if runs is None:  # still to be measured
                continue
            columns = [[100 * a for a in column] for column in zip(*(run["accuracies"] for run in runs), strict=True)]
            columns.append([statistics.mean(column) for column in zip(*columns, strict=True)])
            cells = [mean_std(column) for column in columns]
            ratio = statistics.median(run["seconds"] for run in runs) / plain
            print(f"| {title if way == 'plain' else ''} | {label} | {' | '.join(cells)} | {ratio:.1f} × |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
