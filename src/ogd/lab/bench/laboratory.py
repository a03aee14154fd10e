"""Contestants of the laboratory: a run-step of each method in lockstep, and of the plain loop for one run."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ogd.lab.bench.stopwatch import Contestant
from ogd.lab.benchmarks import Examples, Task
from ogd.lab.benchmarks.batches import chunks
from ogd.lab.methods import AGEM, DER, ER, EWC, OGD, FinishedTask, Method, Rehearsal
from ogd.lab.methods import SGD as Plain
from ogd.lab.models import PAPER, StackedMLP, mlp
from ogd.lab.optimizers import SGD
from ogd.lab.training.loop import take_step
from ogd.seeds import draw

BATCH, RUNS, LR = 10, 10, 1e-3
DIRECTIONS = 800  # stored by OGD during the paper's fifth task
FINISHED = 4  # tasks before it
EXAMPLES = 3200  # of a plain loop, whatever its number of steps

Prepare = Callable[[nn.Module, torch.optim.Optimizer], Callable[[], None] | None]


def random_task(n: int = 60_000) -> Task:
    """As many examples as a task of the paper has: what is drawn from it comes from memory, not from cache."""
    g = torch.Generator().manual_seed(0)
    examples = Examples(torch.rand(n, 1, 28, 28, generator=g), torch.randint(PAPER[-1], (n,), generator=g))
    return Task("random", examples, examples)


def contestants() -> dict[str, Contestant]:
    """Everybody, ready to run; a unit is a run-step."""
    task = random_task()
    per_task = DIRECTIONS // FINISHED
    return {
        "plain": plain_loop(320),
        "dense": plain_loop(16, lambda model, _: dense_projection(model, DIRECTIONS)),
        "sgd": lockstep(Plain(), task, 320),
        "ogd": lockstep(OGD(per_task), task, 64),
        "ogd every 10": lockstep(OGD(per_task, projection="explicit", every=10), task, 40),
        "ogd every 50": lockstep(OGD(per_task, projection="explicit", every=50), task, 100),
        "ogd every 500": lockstep(OGD(per_task, projection="explicit", every=500), task, 500),
        "ewc": lockstep(EWC(), task, 160),
        "agem": lockstep(AGEM(), task, 160),
        "er": lockstep(ER(), task, 160),
        "der": lockstep(DER(), task, 160),
        "rehearsal": lockstep(Rehearsal(), task, 160),
    }


def plain_loop(steps: int, prepare: Prepare = lambda model, optimizer: None) -> Contestant:
    """What anyone would write: zero_grad, forward, cross_entropy, backward, step; `prepare` may add to it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = torch.rand(EXAMPLES, PAPER[0]), torch.randint(PAPER[-1], (EXAMPLES,))
    before_step = prepare(model, optimizer)

    def run() -> float:
        began = time.perf_counter()
        for step in range(steps):
            a = step * BATCH % EXAMPLES
            optimizer.zero_grad()
            F.cross_entropy(model(x[a : a + BATCH]), y[a : a + BATCH]).backward()
            if before_step is not None:
                before_step()
            optimizer.step()
        return (time.perf_counter() - began) / steps

    return run


def dense_projection(model: nn.Module, n: int) -> Callable[[], None]:
    """What other implementations do: two products of the gradient with an orthonormal p × n basis."""
    weights = list(model.parameters())
    sizes = [w.numel() for w in weights]
    Q = torch.linalg.qr(torch.randn(sum(sizes), n)).Q.mT.contiguous().mT  # the faster layout for both products

    def project() -> None:
        gradients: list[Tensor] = [w.grad for w in weights if w.grad is not None]
        g = torch.cat([gradient.flatten() for gradient in gradients])
        g = g - Q @ (Q.mT @ g)
        for gradient, part in zip(gradients, g.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    return project


def lockstep(method: Method, task: Task, steps: int) -> Contestant:
    """The laboratory's own loop during the task that follows the finished ones."""
    model = StackedMLP(runs=RUNS)
    method.begin(model, seed=0)
    for number in range(1, FINISHED + 1):
        method.end_task(FinishedTask(task, model, number, 0, PAPER[-1], 0))
    return stepping(model, method, task, steps)


def stepping(model: StackedMLP, method: Method, task: Task, steps: int) -> Contestant:
    """Steps of the laboratory's loop, as a method stands."""
    optimizer = SGD(model, LR)
    constraint = method.constraint(optimizer)
    index = draw(0, model.runs, "bench", len(task.train), steps * BATCH)

    def run() -> float:
        began = time.perf_counter()
        step = 0
        for chunk in chunks([task], index, [None], PAPER[-1], BATCH):
            constraint.foresee(chunk.x)
            for batch in chunk.split(BATCH):
                take_step(optimizer, method, constraint, batch, step)
                step += 1
        return (time.perf_counter() - began) / (steps * len(model.runs))

    return run
