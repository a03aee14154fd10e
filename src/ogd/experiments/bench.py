"""This machine's speed, as ratios measured side by side in one process."""

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from ogd.benchmarks import Examples, Task
from ogd.experiments.unit import one_thread
from ogd.methods import SGD
from ogd.models import PAPER, StackedMLP, mlp
from ogd.records.speed import Ratio
from ogd.training.batches import chunks, order
from ogd.training.descent import Descent
from ogd.training.loop import step
from ogd.training.progress import Display

BATCH, RUNS, STEPS, REPEATS = 10, 10, 320, 9


def measure() -> list[Ratio]:
    """Measure every ratio on one thread."""
    with one_thread(), Display("bench") as display:
        display.start(REPEATS)
        return [lockstep_sgd_speedup(lambda: display.advance(1, "lockstep_sgd_speedup"))]


def lockstep_sgd_speedup(tick: Callable[[], None]) -> Ratio:
    """Run-steps a second of SGD on a stack of 10 runs, over those of the plain PyTorch loop for one run."""
    slow, fast = _plain_loop(), _lockstep()
    ratios = []
    slow()
    fast()
    for _ in range(REPEATS):
        ratios.append(RUNS * slow() / fast())
        tick()
    meaning = f"SGD, {RUNS} runs in lockstep, against the plain PyTorch loop for one run (run-steps a second)"
    return Ratio("lockstep_sgd_speedup", statistics.median(ratios), min(ratios), max(ratios), meaning)


def _plain_loop() -> Callable[[], float]:
    """What anyone would write: zero_grad, forward, cross_entropy, backward, step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.rand(STEPS * BATCH, PAPER[0]), torch.randint(PAPER[-1], (STEPS * BATCH,))

    def steps() -> float:
        began = time.perf_counter()
        for a in range(0, len(y), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[a : a + BATCH]), y[a : a + BATCH]).backward()
            optimizer.step()
        return time.perf_counter() - began

    return steps


def _lockstep() -> Callable[[], float]:
    """The laboratory's own loop, drawing its examples at random from 60,000 as it does there."""
    n = 60_000
    examples = Examples(torch.rand(n, PAPER[0]), torch.randint(PAPER[-1], (n,)))
    task = Task("random", examples, examples)
    model, method = StackedMLP(runs=RUNS), SGD()
    descent = Descent(model, lr=1e-3)
    index = order(0, model.runs, "bench", n, STEPS * BATCH)

    def steps() -> float:
        began = time.perf_counter()
        for chunk in chunks([task], index, [None], PAPER[-1], BATCH):
            for batch in chunk.split(BATCH):
                step(descent, method, model, batch)
        return time.perf_counter() - began

    return steps
