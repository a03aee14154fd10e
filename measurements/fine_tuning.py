"""Fine-tune a pretrained model in several ways, into a record that can be resumed, and show it.

AdamW, batches of 16. The new head learns ten times as fast as the body, and LoRA's matrices (rank 8) as fast as the
head. BatchNorm keeps its statistics with LoRA and a frozen backbone, and in an `ExampleMemory` from `remember` on.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ogd import json_files

RESULTS = Path(__file__).parents[1] / "results"
SEEDS, BATCH = (0, 1, 2), 16
WAYS = {
    "plain": "no protection",
    "still": "no protection, BatchNorm as it was",
    "lower": "no protection, a tenth of the learning rate",
    "frozen": "frozen backbone, a new head",
    "lora": "LoRA (peft)",
    "unit": "`ExampleMemory(model)`, embeddings of length 1",
    "old": "`ExampleMemory(model)`, inputs of the old kind",
    "new": "`ExampleMemory(model)`, inputs of the new kind",
    "noise": "`ExampleMemory(model)`, noise",
    "often": "`ExampleMemory(model)` with `every=1, batch_size=32`, inputs of the old kind",
    "both": "LoRA and `ExampleMemory(model)`, inputs of the old kind",
}
PROTECTED = ("unit", "old", "new", "noise", "often", "both")  # by an `ExampleMemory`
Run = dict[str, Any]


def train(model: Any, x: Any, y: Any, way: str, *, rate: float, lora: Any, kept: Any, old: Any, order: Any) -> float:
    """Fine-tune a model with `body`, `head` and a forward of logits; return the processor's seconds per step.

    `old` is a function (model, x) → the former outputs, `kept` the inputs for which `ExampleMemory` keeps them, and
    `order` the rows of each step's batch.
    """
    import peft
    import torch
    from torch.nn import BatchNorm2d
    from torch.nn.functional import cross_entropy
    from torch.utils import _pytree as pytree

    import ogd

    adapted = way in ("lora", "both")
    if adapted:
        peft.inject_adapter_in_model(lora, model)
        model.head.requires_grad_(True)
    elif way == "frozen":
        model.body.requires_grad_(False)
    body = [p for p in model.body.parameters() if p.requires_grad]
    speed = 10.0 if adapted else 0.1 if way == "lower" else 1.0
    groups = [{"params": model.head.parameters(), "lr": 10 * rate}]
    optimizer = torch.optim.AdamW([*groups, {"params": body, "lr": speed * rate}] if body else groups)
    if kept is not None:
        memory = ogd.ExampleMemory(model, logits=old)
        memory.remember(kept)
        memory.protect(optimizer, **({"every": 1, "batch_size": 32} if way == "often" else {}))
    model.train()
    for module in model.modules():
        if way == "frozen" or ((adapted or way == "still") and isinstance(module, BatchNorm2d)):
            module.eval()
    start = time.process_time()
    for rows in order:
        optimizer.zero_grad()
        batch = pytree.tree_map(lambda t, rows=rows: t[rows], x)
        z = model(**batch) if isinstance(batch, dict) else model(batch)
        cross_entropy(z, y[rows]).backward()
        optimizer.step()
    return (time.process_time() - start) / len(order)


def measure(name: str, ways: tuple[str, ...], one: Callable[[str, int], Run]) -> None:
    """Compute what the record lacks, or has with other defaults of the memory, seed after seed."""
    import torch

    import defaults
    import ogd
    from ogd.files import write_text
    from ogd.lab.progress import Display
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    path = RESULTS / f"pretrained-{name}.json"
    record: dict[str, Any] = json_files.load(path) if path.exists() else {"schema": 1, "runs": {}}
    today = {way: defaults.of(ogd.ExampleMemory) if way in PROTECTED else {} for way in ways}
    wanted = [(way, seed) for seed in SEEDS for way in ways]
    done = record["runs"]
    missing = [
        (way, seed)
        for way, seed in wanted
        if not (run := done.get(f"{way} {seed}")) or run.get("defaults", {}) != today[way]
    ]
    with Display(name) as display:
        display.start(len(missing))
        for way, seed in missing:
            run = one(way, seed)
            done[f"{way} {seed}"] = {**run, "defaults": today[way]} if today[way] else run
            write_text(path, json.dumps({**record, "environment": environment()}, indent=1) + "\n")
            display.advance(1, f"{way} {seed}")


def found(name: str, way: str, what: str) -> list[float]:
    """Return a number of each seed."""
    runs = json_files.load(RESULTS / f"pretrained-{name}.json")["runs"]
    return [runs[key][what] for seed in SEEDS if (key := f"{way} {seed}") in runs]


def table(name: str, columns: dict[str, tuple[str, float, str]]) -> None:
    """Print a row for each way, and a column for each number: its title, factor and format."""
    print(f"| | {' | '.join(title for title, *_ in columns.values())} | a step, without protection = 1 |")
    print(f"| --- |{' ---: |' * (len(columns) + 1)}")
    for way, title in {"before": "before fine-tuning", **WAYS}.items():
        if not found(name, way, next(iter(columns))):
            continue
        cells = []
        for what, (_, factor, form) in columns.items():
            values = [factor * value for value in found(name, way, what)]
            spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 and way != "before" else ""
            cells.append(f"{statistics.mean(values):{form}}{spread}")
        seconds = zip(found(name, way, "seconds"), found(name, "plain", "seconds"), strict=False)
        cells.append("" if way == "before" else f"{statistics.mean(a / b for a, b in seconds):.2f}")
        print(f"| {title} | {' | '.join(cells)} |")
