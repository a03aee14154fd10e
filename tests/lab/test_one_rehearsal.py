"""The laboratory's `rehearsal` is the library's: the same loss, the same draws, the same defaults."""

import inspect

import pytest
import torch
from torch import nn

from ogd import seeds
from ogd.lab import methods
from ogd.lab.benchmarks.batches import Batch, examples
from ogd.lab.catalogue import METHODS
from ogd.lab.methods import FinishedTask
from ogd.lab.models.stack import loss_gradient
from ogd.lab.optimizers import SGD
from ogd.memory import ExampleMemory
from small_lab import make, stack

LR, RUN = 4.0, 1


def test_both_have_the_same_defaults() -> None:
    ours = inspect.signature(ExampleMemory.protect).parameters
    theirs = {option.name: option.default_on("permuted") for option in METHODS["rehearsal"].options}
    names = {"every": "replay_every", "batch_size": "replay_batch", "alpha": "alpha", "bound": "bound"}
    assert {name: ours[name].default for name in names} == {name: theirs[other] for name, other in names.items()}
    assert inspect.signature(ExampleMemory).parameters["per_task"].default == theirs["per_task"]
    remember = inspect.signature(ExampleMemory.remember).parameters
    assert {name: remember[name].default for name in ("choose", "merge")} == {"choose": "uniform", "merge": 1}
    assert (theirs["choose"], theirs["merge"], theirs["in_total"]) == ("uniform", 1, 0)


@pytest.mark.parametrize("name", ["rotated", "split"])
@pytest.mark.parametrize("momentum", [0, 0.75])
@pytest.mark.parametrize("options", [{}, {"replay_batch": 5, "replay_every": 3, "alpha": 2.0, "bound": 0.2}])
def test_both_take_the_same_steps(tiny, name: str, options: dict[str, float], momentum: float) -> None:
    benchmark = make(name, tiny, tasks=3)
    method, model = methods.Rehearsal(per_task=12, **options), stack(runs=[RUN])
    module = model.module(RUN)
    memory = ExampleMemory(module, per_task=None)
    method.begin(model, seed=7)
    for number, task in enumerate(benchmark.tasks[:2], 1):
        finished = FinishedTask(task, model, number, 10, benchmark.outputs, seed=7)
        kept = finished.draw(12)
        method.end_task(finished)
        memory.remember((kept.x[0].flatten(1), kept.target[0].argmax(-1)), classes=task.classes)
    memory.seed = seeds.number(7, RUN, "rehearsal")
    alpha, bound = method.alpha[0], method.bound[0]
    way = {"every": method.replay_every, "batch_size": method.replay_batch, "alpha": alpha, "bound": bound}
    theirs, ours = SGD(model, LR, momentum), torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum)
    method.constraint(theirs)
    rehearsal = memory.protect(ours, **way)
    rehearsed = 0
    for step in range(10, 17):
        batch = new_batch(benchmark, step)
        tape, z = model.passing(batch.x)
        gradient = model.backward(tape, loss_gradient(z, batch.target, batch.head))
        changed = method.transform(gradient, model, step)
        rehearsed += changed is not gradient
        theirs.step(changed)
        ours.zero_grad()
        head = torch.zeros(benchmark.outputs) if batch.head is None else batch.head
        loss = nn.functional.cross_entropy(module(batch.x[0].flatten(1).double()) + head, batch.target[0].argmax(-1))
        loss.backward()
        ours.step()
        for w, v in zip(model.module(RUN).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(w, v, rtol=0, atol=1e-12)
    assert rehearsed == memory.draws == 7 // method.replay_every
    assert rehearsal.bounded > 0


def new_batch(benchmark, step: int) -> Batch:
    """A batch of the third task."""
    task = benchmark.tasks[2]
    index = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(step))[None, :7]
    return examples(task, index, task.columns([RUN]), benchmark.outputs)
