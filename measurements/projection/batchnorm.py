"""What becomes of remembered outputs when running statistics move; `--show` prints the last measurement.

    python measurements/projection/batchnorm.py          measures; writes results/batchnorm.json
    python measurements/projection/batchnorm.py --show   prints that record as Markdown

A convolutional network with BatchNorm learns 6,000 digits, 100 of them are remembered with every logit, and SGD learns
the digits turned by 40° for 200 steps of 32 at learning rate 0.001. Drift: the mean change of a remembered logit, in
evaluation mode.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

RECORD = Path(__file__).parents[2] / "results" / "batchnorm.json"
STEPS, LR, SEEDS = 200, 1e-3, (0, 1, 2)
WAYS = {
    "free": "not protected",
    "move": "protected, `freeze_buffers=False`",
    "keep": "protected, `freeze_buffers=True` (the default)",
    "batch": "protected, statistics put back after each step, training with the batch's",
    "still": "not protected, statistics kept",
}


def measure() -> dict[str, Any]:
    """Return the drift of remembered logits and the accuracies after the second task, for each way and seed."""
    import torch

    from ogd.lab import benchmarks
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    old, new = benchmarks.rotated(angles=[0, 40]).tasks
    runs = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        first = _network()
        order = torch.randperm(len(old.train))[:6000]
        _train(first, torch.optim.SGD(first.parameters(), lr=0.05), old, order)
        for way in WAYS:
            runs.append({"seed": seed, "way": way, **_second(copy.deepcopy(first), way, old, new, order)})
            print(runs[-1], flush=True)
    return {"schema": 1, "runs": runs, "environment": environment()}


def _network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 49, 10),
    )


def _train(network: Any, optimizer: Any, task: Any, order: Any, put_back: bool = False) -> None:
    from torch.nn.functional import cross_entropy

    kept = {name: b.clone() for name, b in network.named_buffers()}

    for batch in order.split(32):
        optimizer.zero_grad()
        cross_entropy(network(task.train.x[batch]), task.train.y[batch]).backward()
        optimizer.step()
        if put_back:
            network.load_state_dict(kept, strict=False)


def _second(network: Any, way: str, old: Any, new: Any, order: Any) -> dict[str, float]:
    import warnings

    import torch

    from ogd.memory import GradientMemory

    x, y = old.train.x[order[:100]], old.train.y[order[:100]]
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    memory = GradientMemory(network, per_task=200, outputs="all", freeze_buffers=way not in ("move", "batch"))
    if way != "free":
        memory.remember((x, y))
    if way in ("keep", "move", "batch"):
        memory.protect(optimizer, every=1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that statistics move
        before = network.eval()(x)
        network.train()
        with torch.enable_grad():
            _train(network, optimizer, new, order[: 32 * STEPS], way == "batch")
        network.eval()
        drift = (network(x) - before).abs().mean().item()
        kept, learned = [(network(task.test.x).argmax(1) == task.test.y).double().mean().item() for task in (old, new)]
    return {"drift": drift, "kept": kept, "learned": learned}


def show() -> None:
    record = json_files.load(RECORD)
    print("| training on the second task | drift of a remembered logit | first task | second task |")
    print("| --- | ---: | ---: | ---: |")
    for way, label in WAYS.items():
        runs = [run for run in record["runs"] if run["way"] == way]
        drifts = [run["drift"] for run in runs]
        cells = [mean_std(drifts, 4)]
        for key in ("kept", "learned"):
            values = [100 * run[key] for run in runs]
            cells.append(mean_std(values))
        print(f"| {label} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if "--show" in sys.argv:
        show()
    else:
        RECORD.write_text(json.dumps(measure(), indent=1) + "\n")
        show()
