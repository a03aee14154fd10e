"""The one loop: tasks in sequence, epochs, batches, and an accuracy matrix at the end."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ogd.benchmarks import Benchmark
from ogd.benchmarks.batch import Batch
from ogd.methods import SGD, Method
from ogd.methods.method import Network
from ogd.models import StackedMLP
from ogd.models.loss import loss_gradient
from ogd.progress import Display, Reporter, Silent
from ogd.records.schedule import Schedule
from ogd.seeds import draw
from ogd.training.batches import chunks
from ogd.training.checkpoint import Checkpoint, Snapshot
from ogd.training.descent import Descent
from ogd.training.evaluation import evaluate
from ogd.training.result import Result
from ogd.training.threads import one_thread


class Diverged(ArithmeticError):
    """The weights of a run are no longer finite numbers."""


@dataclass
class _State:
    """What is trained, how, and how far it is."""

    benchmark: Benchmark
    model: StackedMLP
    method: Method
    schedule: Schedule
    report: Reporter
    check: bool = True  # raise where weights are not finite
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        self.columns = [task.columns(self.model.runs) for task in self.benchmark.tasks]
        self.so_far = Snapshot()
        self.step = 0
        self.began = time.perf_counter()

    def weights(self) -> list[Tensor]:
        return [w.detach().clone() for w in self.model.parameters()]

    def seconds(self) -> float:
        return self.so_far.seconds + time.perf_counter() - self.began

    def keep(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.write(replace(self.so_far, seconds=self.seconds()))

    @torch.no_grad()
    def take_up(self, weights: list[Tensor], steps: int) -> None:
        """Go on from weights that so many steps since the last task's end have led to."""
        for w, value in zip(self.model.parameters(), weights, strict=True):
            w.copy_(value)
        self.method.skip(steps)
        self.step += steps


def train(
    benchmark: Benchmark,
    model: StackedMLP,
    method: Method | None = None,
    *,
    epochs: int = 5,
    batch_size: int = 10,
    lr: float = 1e-3,
    momentum: float = 0.0,
    seed: int = 0,
    curve_every: int | None = None,
    first: Snapshot | None = None,
    checkpoint: Checkpoint | None = None,
    check: bool = True,
    progress: bool | Reporter = True,
) -> Result:
    """Train every run of `model` on the tasks one after the other, evaluating on all tasks after each.

    The loss is softmax cross-entropy over the task's head, averaged over the batch, and the optimizer is gradient
    descent at `lr`, as in the paper; with `momentum` it is torch.optim.SGD's, anew for every task. With
    `curve_every=N` the accuracy on the tasks seen so far is kept every N steps. `first` spares the first task, which
    is the same for all methods (see `first_task`). What is kept in `checkpoint` after a task or an epoch is taken up
    again, and the result is the same as without a break. Weights that are no longer finite raise `Diverged`, unless
    `check` is false. `model` holds the trained weights afterwards.

    Examples:
        >>> from ogd import benchmarks
        >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(20) % 4 // 2
        >>> benchmark = benchmarks.from_datasets([((x, y), (x, y))])
        >>> result = train(benchmark, StackedMLP((4, 8, 2), runs=2), lr=0.5, epochs=20)
        >>> result.average_accuracy.tolist()
        [1.0, 1.0]
    """
    schedule = Schedule(epochs, batch_size, lr, momentum=momentum, seed=seed, curve_every=curve_every)
    method = SGD() if method is None else method
    _check(benchmark, model, method, schedule, first, checkpoint)
    display = Display(f"{benchmark.name} {method.name}") if progress is True else None
    report = display or (progress if not isinstance(progress, bool) else Silent())
    state = _State(benchmark, model, method, schedule, report, check, checkpoint)
    with display or nullcontext():
        return _train_all(state, first)


def first_task(
    benchmark: Benchmark,
    model: StackedMLP,
    schedule: Schedule,
    report: Reporter,
    checkpoint: Checkpoint | None = None,
) -> Snapshot:
    """Train `model` on the first task only, as every method does, for `train` to take over."""
    alone = replace(benchmark, tasks=benchmark.tasks[:1])
    state = _State(alone, model, SGD(), schedule, report, checkpoint=checkpoint)
    seconds = _train_all(state, None).seconds
    return replace(state.so_far, seconds=seconds)


@one_thread()
def _train_all(state: _State, first: Snapshot | None) -> Result:
    model, method, tasks, schedule = state.model, state.method, state.benchmark.tasks, state.schedule
    method.begin(model, schedule.seed)
    if state.checkpoint is not None:
        options = {name: value for name, value in vars(method).items() if isinstance(value, int | float | str)}
        state.checkpoint = state.checkpoint.of(f"{state.benchmark!r} {method!r} {options} {schedule} {model.runs}")
    saved = state.checkpoint and state.checkpoint.read(state.weights(), len(tasks), finite=state.check)
    so_far = state.so_far = saved or _begun(state, first)
    left = tasks[len(so_far.finished) :]
    taken = so_far.epoch * schedule.steps_per_epoch(len(left[0].train)) if so_far.epoch else 0
    state.report.start(schedule.steps(*(len(task.train) for task in left)) - taken)
    for t, task in enumerate(tasks):
        new = t >= len(so_far.finished)
        if new:
            _train_task(state, t)
            so_far.finished.append(state.weights())
            so_far.weights, so_far.epoch = [], 0
        else:
            state.take_up(so_far.finished[t], schedule.steps(len(task.train)))
        method.end_task(model, task, state.columns[t])
        if len(so_far.accuracy) == t + 1:
            so_far.accuracy.append(evaluate(model, tasks, state.columns))
        if new:
            state.keep()
    points = np.stack(so_far.curve, 1) if so_far.curve else np.empty((len(model.runs), 0, len(tasks)))
    return Result(model.runs, np.stack(so_far.accuracy, 1), so_far.curve_steps, points, state.seconds())


def _begun(state: _State, first: Snapshot | None) -> Snapshot:
    """Start anew, after a first task where one is given: its curve has one task, ours all of them."""
    begun = Snapshot(accuracy=[evaluate(state.model, state.benchmark.tasks, state.columns)])
    if first is None:
        return begun
    missing = np.full((len(state.model.runs), len(state.benchmark) - 1), np.nan)
    curve = [np.concatenate([point, missing], 1) for point in first.curve]
    return replace(
        begun, finished=list(first.finished), curve_steps=list(first.curve_steps), curve=curve, seconds=first.seconds
    )


def _train_task(state: _State, t: int) -> None:
    model, method, tasks, schedule = state.model, state.method, state.benchmark.tasks, state.schedule
    sources = method.examples(tasks[: t + 1])
    columns = [task.columns(model.runs) for task in sources]
    total, n = sum(len(task.train) for task in sources), len(tasks[t].train)
    if state.so_far.epoch:
        state.take_up(state.so_far.weights, state.so_far.epoch * schedule.steps_per_epoch(len(tasks[t].train)))
    descent, network = Descent(model, schedule.lr, schedule.momentum), method.network(model)
    for epoch in range(state.so_far.epoch, schedule.epochs):
        index = draw(schedule.seed, model.runs, f"order/{t}/{epoch}", total, n)
        note = f"task {t + 1}/{len(tasks)}, epoch {epoch + 1}/{schedule.epochs}"
        for chunk in chunks(sources, index, columns, model.sizes[-1], schedule.batch_size):
            method.foresee(chunk.x)
            for batch in chunk.split(schedule.batch_size):
                step(descent, method, network, batch)
                state.step += 1
                state.report.advance(1, note)
                if schedule.curve_every and state.step % schedule.curve_every == 0:
                    _add_point(state, t)
            if state.check:  # what is not finite reaches the last bias within a step
                _check_finite(state, model.layers[-1][1:], note)
        method.settle(model)
        if state.check:
            _check_finite(state, list(model.parameters()), note)
        if not schedule.momentum:  # whose velocity is not in a snapshot: there only whole tasks are
            state.so_far.weights, state.so_far.epoch = state.weights(), epoch + 1
            state.keep()


def step(descent: Descent, method: Method, network: Network, batch: Batch) -> None:
    """Take one step: w ← w − η (transform(∂L/∂w) + ∂penalty/∂w)."""
    model = descent.model
    inputs, logits = network.activations(batch.x.to(descent.parameters[0].dtype))
    gradient = network.backward(inputs, loss_gradient(logits, batch.target, batch.head))
    descent.step(method.transform(gradient, model), method.penalty())
    method.after_step(model, descent.lr, descent.momentum)


def _add_point(state: _State, t: int) -> None:
    """Look at the tasks seen so far, which changes nothing: what a method has pending stays so."""
    settled = state.method.settled(state.model)
    point = np.full((len(state.model.runs), len(state.benchmark)), np.nan)
    point[:, : t + 1] = evaluate(settled, state.benchmark.tasks[: t + 1], state.columns[: t + 1])
    state.so_far.curve_steps.append(state.step)
    state.so_far.curve.append(point)


def _check_finite(state: _State, weights: Sequence[Tensor], note: str) -> None:
    finite = torch.stack([w.detach().flatten(1).isfinite().all(1) for w in weights]).all(0)  # (R,)
    if not finite.all():
        runs = [str(run) for run, good in zip(state.model.runs, finite.tolist(), strict=True) if not good]
        where = f"{state.method!r} at lr {state.schedule.lr:g}, {note}, by step {state.step}"
        raise Diverged(f"the weights of run {', '.join(runs)} are not finite: {where}")


def _check(
    benchmark: Benchmark,
    model: StackedMLP,
    method: Method,
    schedule: Schedule,
    first: Snapshot | None,
    checkpoint: Checkpoint | None,
) -> None:
    if not isinstance(model, StackedMLP):
        raise TypeError(
            f"model: must be an ogd.models.StackedMLP, not {type(model).__name__}; "
            "StackedMLP.from_modules([model]) makes one of an nn.Sequential"
        )
    if not isinstance(checkpoint, Checkpoint | None):
        raise TypeError(f"checkpoint: must be an ogd.training.Checkpoint, not {checkpoint!r}")
    if not isinstance(first, Snapshot | None):
        raise TypeError(f"first: must be what ogd.training.first_task returned, not {first!r}")
    if not isinstance(method, Method):
        raise TypeError(f"method: must be an ogd.methods.Method such as ogd.methods.OGD(), not {method!r}")
    smallest = min(benchmark.tasks, key=lambda task: len(task.train))
    n, size = len(smallest.train), schedule.batch_size
    if size > n:
        raise ValueError(f"batch_size: {size} is above the {n} training examples of {smallest.name}")
    if (model.sizes[0], model.sizes[-1]) != (benchmark.inputs, benchmark.outputs):
        raise ValueError(
            f"model: maps {model.sizes[0]} inputs to {model.sizes[-1]} logits where the benchmark "
            f"has {benchmark.inputs} inputs and {benchmark.outputs} classes"
        )
