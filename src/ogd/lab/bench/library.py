"""Contestants of the library: what the memories cost someone's own loop, in time and in bytes."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from ogd.lab.bench import laboratory
from ogd.lab.bench.laboratory import plain_loop
from ogd.lab.bench.stopwatch import Contestant
from ogd.lab.models import PAPER, mlp
from ogd.lab.records.speed import Ratio
from ogd.memory import ExampleMemory, GradientMemory, Memory

M = TypeVar("M", bound=Memory)
STORED = 200  # gradients per task
TURN = 250  # steps of a loop

# key, over, under, what is measured
LOOP_RATIOS = [
    (
        "protect_every_50_overhead",
        "protected every 50",
        "plain",
        "your own loop under protect(every=50), against plain",
    ),
    (
        "protect_auto_overhead",
        "protected auto",
        "plain",
        'your own loop under protect(every="auto"), 800 directions, against plain',
    ),
    (
        "protect_rehearsal_overhead",
        "rehearsing",
        "plain",
        "your own loop that rehearses 20 of 800 kept examples every 10 steps, against plain",
    ),
]


def contestants() -> dict[str, Contestant]:
    """A unit is a step of the plain loop, protected; or collecting the gradients of one task."""
    model = mlp()
    x, y = torch.rand(STORED, PAPER[0]), torch.randint(PAPER[-1], (STORED,))
    return {
        "protected": plain_loop(64, _protect(1)),
        "collect": timed(lambda: GradientMemory(model).remember((x, y))),
        "collect by a loop": timed(lambda: loop_of_backwards(model, x, y)),
    }


def loops() -> dict[str, Contestant]:
    """Loops that differ by little, apart from the others, which would push them out of the cache; a unit is a step."""
    return {
        "plain": plain_loop(TURN),
        "protected every 50": plain_loop(TURN, _protect(50)),
        "protected auto": plain_loop(TURN, _protect("auto")),  # k is some hundreds: a round of turns has some windows
        "rehearsing": plain_loop(TURN, _rehearse),
    }


def bytes_ratio() -> Ratio:
    """Bytes of a dense gradient over those a direction takes on disk; the words say what it takes with K in memory."""
    model = mlp()
    memory = _remembered(GradientMemory(model, STORED))
    assert memory.rank  # K is made when it is first needed
    dense = sum(w.numel() * w.element_size() for w in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.safetensors"
        memory.save(path)
        ratio = dense / (path.stat().st_size / len(memory))
    resident = dense / (memory.resident_nbytes / len(memory))
    meaning = (
        f"a dense gradient's bytes over a stored one's on disk ({resident:.0f} × with K, in memory, before it protects)"
    )
    return Ratio("bytes_ratio", ratio, ratio, ratio, meaning)


def timed(work: Callable[[], object]) -> Contestant:
    def run() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return run


def loop_of_backwards(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What other implementations do: batch size 1, one backward pass per example."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        model(x[i : i + 1])[0, y[i]].backward()
        rows.append(torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None]))
    return torch.stack(rows)


def _protect(every: int | Literal["auto"]) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
    def prepare(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _remembered(GradientMemory(model, STORED)).protect(optimizer, every)

    return prepare


def _rehearse(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    _remembered(ExampleMemory(model, STORED)).protect(optimizer, every=10, batch_size=20)


def _remembered(memory: M) -> M:
    for _ in range(laboratory.DIRECTIONS // STORED):
        images = torch.randint(256, (STORED, PAPER[0])) / 255
        memory.remember((images, torch.randint(PAPER[-1], (STORED,))))
    return memory
