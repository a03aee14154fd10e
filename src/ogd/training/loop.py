"""The one loop: tasks in sequence, epochs, batches, and an accuracy matrix at the end."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ogd.benchmarks import Benchmark
from ogd.benchmarks.drawing import Batch
from ogd.methods import SGD, Method
from ogd.methods.method import Network
from ogd.models import StackedMLP
from ogd.models.loss import loss_gradient
from ogd.records import metrics
from ogd.seeds import draw
from ogd.training.batches import chunks
from ogd.training.descent import Descent
from ogd.training.evaluation import evaluate
from ogd.training.progress import Display, Reporter, Silent
from ogd.training.schedule import Schedule

Array = npt.NDArray[np.float64]


class Diverged(ArithmeticError):
    """The weights of a run are no longer finite numbers."""


@dataclass(frozen=True)
class Result:
    """What came out, for every run: `accuracy` (R, 1 + tasks, tasks), fractions; row i is after i tasks."""

    runs: tuple[int, ...]
    accuracy: Array
    curve_steps: list[int]
    curve: Array  # (R, points, tasks), NaN before a task began
    seconds: float

    @property
    def final_accuracy(self) -> Array:
        return metrics.final_accuracy(self.accuracy)

    @property
    def average_accuracy(self) -> Array:
        return metrics.average_accuracy(self.accuracy)

    @property
    def forgetting(self) -> Array:
        return metrics.forgetting(self.accuracy)

    @property
    def backward_transfer(self) -> Array:
        return metrics.backward_transfer(self.accuracy)

    @property
    def forward_transfer(self) -> Array:
        return metrics.forward_transfer(self.accuracy)


@dataclass(frozen=True)
class FirstTask:
    """What the first task leaves, the same for every method: weights, and the curve on that task."""

    weights: list[Tensor]
    steps: int
    curve_steps: list[int]
    curve: list[Array]  # (R,) a point
    seconds: float


@dataclass
class _State:
    """What is trained, how, and how far it is."""

    benchmark: Benchmark
    model: StackedMLP
    method: Method
    schedule: Schedule
    report: Reporter
    check: bool = True  # raise where weights are not finite
    step: int = 0
    curve_steps: list[int] = field(default_factory=list)
    curve: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [task.columns(self.model.runs) for task in self.benchmark.tasks]


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
    first: FirstTask | None = None,
    check: bool = True,
    progress: bool | Reporter = True,
) -> Result:
    """Train every run of `model` on the tasks one after the other, evaluating on all tasks after each.

    The loss is softmax cross-entropy over the task's head, averaged over the batch, and the optimizer is gradient
    descent at `lr`, as in the paper; with `momentum` it is torch.optim.SGD's, anew for every task. With
    `curve_every=N` the accuracy on the tasks seen so far is kept every N steps. `first` spares the first task, which
    is the same for all methods (see `first_task`). Weights that are no longer finite raise `Diverged`, unless `check`
    is false. `model` holds the trained weights afterwards.

    Examples:
        >>> from ogd import benchmarks
        >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(20) % 4 // 2
        >>> benchmark = benchmarks.from_datasets([((x, y), (x, y))])
        >>> result = train(benchmark, StackedMLP((4, 8, 2), runs=2), lr=0.5, epochs=20)
        >>> result.average_accuracy.tolist()
        [1.0, 1.0]
    """
    schedule = Schedule(epochs, batch_size, lr, momentum, seed, curve_every)
    method = SGD() if method is None else method
    _check(benchmark, model, method, schedule)
    display = Display(f"{benchmark.name} {method.name}") if progress is True else None
    report = display or (progress if not isinstance(progress, bool) else Silent())
    state = _State(benchmark, model, method, schedule, report, check)
    began = time.perf_counter()
    with display or nullcontext():
        report.start(schedule.steps(*benchmark.tasks[0 if first is None else 1 :]))
        method.begin(model, seed)
        accuracy = [evaluate(model, benchmark.tasks, state.columns)]
        for t, task in enumerate(benchmark.tasks):
            if t == 0 and first is not None:
                _take_over(state, first)
            else:
                _train_task(state, t)
            method.end_task(model, task, state.columns[t])
            accuracy.append(evaluate(model, benchmark.tasks, state.columns))
    points = np.stack(state.curve, 1) if state.curve else np.empty((len(model.runs), 0, len(benchmark)))
    return Result(model.runs, np.stack(accuracy, 1), state.curve_steps, points, time.perf_counter() - began)


def first_task(benchmark: Benchmark, model: StackedMLP, schedule: Schedule, report: Reporter) -> FirstTask:
    """Train `model` on the first task only, as every method does, for `train` to take over."""
    began = time.perf_counter()
    state = _State(benchmark, model, SGD(), schedule, report)
    report.start(schedule.steps(benchmark.tasks[0]))
    _train_task(state, 0)
    weights = [w.detach().clone() for w in model.parameters()]
    curve = [point[:, 0] for point in state.curve]
    return FirstTask(weights, state.step, state.curve_steps, curve, time.perf_counter() - began)


@torch.no_grad()
def _take_over(state: _State, first: FirstTask) -> None:
    for w, value in zip(state.model.parameters(), first.weights, strict=True):
        w.copy_(value)
    state.step, state.curve_steps = first.steps, list(first.curve_steps)
    for values in first.curve:
        point = np.full((len(values), len(state.benchmark)), np.nan)
        point[:, 0] = values
        state.curve.append(point)


def _train_task(state: _State, t: int) -> None:
    model, method, tasks, schedule = state.model, state.method, state.benchmark.tasks, state.schedule
    sources = method.examples(tasks[: t + 1])
    columns = [task.columns(model.runs) for task in sources]
    total, n = sum(len(task.train) for task in sources), len(tasks[t].train)
    descent, network = Descent(model, schedule.lr, schedule.momentum), method.network(model)
    for epoch in range(schedule.epochs):
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
    state.curve_steps.append(state.step)
    state.curve.append(point)


def _check_finite(state: _State, weights: Sequence[Tensor], note: str) -> None:
    finite = torch.stack([w.detach().flatten(1).isfinite().all(1) for w in weights]).all(0)  # (R,)
    if not finite.all():
        runs = [str(run) for run, good in zip(state.model.runs, finite.tolist(), strict=True) if not good]
        where = f"{state.method!r} at lr {state.schedule.lr:g}, {note}, by step {state.step}"
        raise Diverged(f"the weights of run {', '.join(runs)} are not finite: {where}")


def _check(benchmark: Benchmark, model: StackedMLP, method: Method, schedule: Schedule) -> None:
    if not isinstance(model, StackedMLP):
        raise TypeError(
            f"model: must be an ogd.models.StackedMLP, not {type(model).__name__}; "
            "StackedMLP.from_modules([model]) makes one of an nn.Sequential"
        )
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
