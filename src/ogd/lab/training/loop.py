"""The one loop: tasks in sequence, epochs, batches, and an accuracy matrix at the end."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ogd.lab.benchmarks import Benchmark
from ogd.lab.benchmarks.batches import Batch, chunks
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.method import Constraint, Method
from ogd.lab.models.stack import Stack, loss_gradient
from ogd.lab.optimizers import Optimizer, optimizer_of
from ogd.lab.progress import Reporter
from ogd.lab.records.request import Schedule
from ogd.lab.training.checkpoint import Checkpoint, History, Weights
from ogd.lab.training.evaluation import Result, evaluate, find_dead
from ogd.seeds import draw


class Diverged(ArithmeticError):
    """The weights of a run are no longer finite numbers."""


@dataclass
class Training:
    """A training: what it trains, how, and its history so far."""

    benchmark: Benchmark
    model: Stack
    method: Method
    schedule: Schedule
    report: Reporter
    check: bool = True  # raise where weights are not finite
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        self.history = History()
        self.step = 0
        self.began = time.perf_counter()

    def weights(self) -> Weights:
        return clone(self.model.params)

    def seconds(self) -> float:
        return self.history.seconds + time.perf_counter() - self.began

    def keep(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.write(replace(self.history, seconds=self.seconds()))

    @torch.no_grad()
    def load_weights(self, weights: Weights, steps: int) -> None:
        """Continue from the weights after this many more steps."""
        for name, w in self.model.params.items():
            w.copy_(weights[name])
        self.step += steps

    def finished(self, t: int) -> FinishedTask:
        """Return task t, just learned, as methods see it."""
        return FinishedTask(
            self.benchmark.tasks[t], self.model, t + 1, self.step, self.benchmark.outputs, self.schedule.seed
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that a result does not depend on how many cores its machine has.

    At batch 10 a second thread costs more than it brings; more cores are for more processes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def run(training: Training, first: History | None) -> Result:
    """Train every task that is not finished yet, after a `first` task where one is given."""
    model, method, tasks, schedule = training.model, training.method, training.benchmark.tasks, training.schedule
    method.begin(model, schedule.seed)
    history = training.history = _resume(training) or _start(training, first)
    left = [len(task.train) for task in tasks[len(history.finished) :]]
    taken = history.epoch * schedule.steps_per_epoch(left[0]) if history.epoch else 0
    training.report.start(schedule.steps(*left) - taken)
    for t, task in enumerate(tasks):
        new = t >= len(history.finished)
        if new:
            _train_task(training, t)
            history.finished.append(training.weights())
            history.weights, history.method, history.epoch = {}, {}, 0
            if not schedule.keep_optimizer:
                history.optimizer = {}
        else:
            training.load_weights(history.finished[t], schedule.steps(len(task.train)))
        method.end_task(training.finished(t))
        if len(history.accuracy) == t + 1:
            history.accuracy.append(evaluate(model, tasks, training.benchmark.outputs))
        if new:
            training.keep()
    points = np.stack(history.curve, 1) if history.curve else np.empty((len(model.runs), 0, len(tasks)))
    accuracy = np.stack(history.accuracy, 1)
    dead = find_dead(model, tasks, training.benchmark.outputs)
    return Result(model.runs, accuracy, history.curve_steps, points, training.seconds(), model, dead)


def _resume(training: Training) -> History | None:
    """Return the history in the checkpoint of an interrupted training, or None."""
    if training.checkpoint is None:
        return None
    method, schedule, model = training.method, training.schedule, training.model
    options = {name: value for name, value in vars(method).items() if isinstance(value, int | float | str | tuple)}
    training.checkpoint = training.checkpoint.of(f"{training.benchmark!r} {method!r} {options} {schedule} {model.runs}")
    optimizer = optimizer_of(schedule, model)
    like = History(weights=training.weights(), optimizer=optimizer.state(), method=method.state())
    return training.checkpoint.read(like, len(training.benchmark), finite=training.check)


def _start(training: Training, first: History | None) -> History:
    """Return a new history, after the first task where one is given: its curve has one task, ours all of them."""
    benchmark, runs = training.benchmark, training.model.runs
    begun = History(accuracy=[evaluate(training.model, benchmark.tasks, benchmark.outputs)])
    if first is None:
        return begun
    missing = np.full((len(runs), len(benchmark) - 1), np.nan)
    curve = [np.concatenate([point, missing], 1) for point in first.curve]
    return replace(
        begun,
        finished=list(first.finished),
        optimizer=first.optimizer,
        curve_steps=list(first.curve_steps),
        curve=curve,
        seconds=first.seconds,
    )


def _train_task(training: Training, t: int) -> None:
    model, method, tasks, schedule = training.model, training.method, training.benchmark.tasks, training.schedule
    history, outputs, size = training.history, training.benchmark.outputs, schedule.batch_size
    sources = method.examples(tasks[: t + 1])
    columns = [task.columns(model.runs) for task in sources]
    total, n = sum(len(task.train) for task in sources), len(tasks[t].train)
    optimizer = optimizer_of(schedule, model)
    if history.epoch:
        training.load_weights(history.weights, history.epoch * schedule.steps_per_epoch(n))
        method.load_state(history.method)
    if history.optimizer:
        optimizer.load_state(history.optimizer)
    constraint = method.constraint(optimizer)
    for epoch in range(history.epoch, schedule.epochs):
        index = draw(schedule.seed, model.runs, f"order/{t}/{epoch}", total, n)
        note = f"task {t + 1}/{len(tasks)}, epoch {epoch + 1}/{schedule.epochs}"
        for chunk in chunks(sources, index, columns, outputs, size):
            constraint.foresee(chunk.x)
            for batch in chunk.split(size):
                take_step(optimizer, method, constraint, batch, training.step)
                training.step += 1
                training.report.advance(1, note)
                if schedule.curve_every and training.step % schedule.curve_every == 0:
                    _add_point(training, constraint, t)
            if training.check:  # what is not finite reaches the last bias within a step
                _check_finite(training, optimizer.params[-1:], note)
        constraint.settle()
        if training.check:
            _check_finite(training, optimizer.params, note)
        history.weights, history.epoch = training.weights(), epoch + 1
        history.optimizer, history.method = clone(optimizer.state()), clone(method.state())
        training.keep()


def clone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in tensors.items()}


def take_step(optimizer: Optimizer, method: Method, constraint: Constraint, batch: Batch, step: int) -> None:
    """Take one step on transform(∂L/∂w) + ∂penalty/∂w."""
    tape, logits = constraint.network.passing(batch.x)
    gradient = constraint.network.backward(tape, loss_gradient(logits, batch.target, batch.head))
    optimizer.step(method.transform(gradient, optimizer.model, step), method.penalty())
    constraint.after_step()


def _add_point(training: Training, constraint: Constraint, t: int) -> None:
    """Evaluate the tasks seen so far, without changing the weights or what a method has pending."""
    benchmark, history = training.benchmark, training.history
    point = np.full((len(training.model.runs), len(benchmark)), np.nan)
    point[:, : t + 1] = evaluate(constraint.settled(), benchmark.tasks[: t + 1], benchmark.outputs)
    history.curve_steps.append(training.step)
    history.curve.append(point)


def _check_finite(training: Training, weights: Sequence[Tensor], note: str) -> None:
    finite = torch.stack([w.detach().flatten(1).isfinite().all(1) for w in weights]).all(0)  # (R,)
    if not finite.all():
        runs = [str(run) for run, good in zip(training.model.runs, finite.tolist(), strict=True) if not good]
        where = f"{training.method!r} at lr {training.schedule.lr:g}, {note}, by step {training.step}"
        raise Diverged(f"the weights of run {', '.join(runs)} are not finite: {where}")
