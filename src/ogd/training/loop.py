"""The one loop: tasks in sequence, epochs, batches, and an accuracy matrix at the end."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ogd.benchmarks import Benchmark
from ogd.methods import SGD, Method
from ogd.models import StackedMLP
from ogd.records import metrics
from ogd.records.request import at_least
from ogd.training.batches import Batch, batches, order
from ogd.training.evaluation import evaluate
from ogd.training.progress import Display, Reporter, Silent

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


@dataclass
class _State:
    """What the loop carries from step to step."""

    benchmark: Benchmark
    model: StackedMLP
    method: Method
    columns: list[Tensor | None]
    report: Reporter
    curve_every: int | None
    step: int = 0
    curve_steps: list[int] = field(default_factory=list)
    curve: list[Array] = field(default_factory=list)


def train(
    benchmark: Benchmark,
    model: StackedMLP,
    method: Method | None = None,
    *,
    epochs: int = 5,
    batch_size: int = 10,
    lr: float = 1e-3,
    seed: int = 0,
    curve_every: int | None = None,
    progress: bool | Reporter = True,
) -> Result:
    """Train every run of `model` on the tasks one after the other, evaluating on all tasks after each.

    The loss is softmax cross-entropy over the task's head, averaged over the batch, and the optimizer is plain
    gradient descent at `lr`, as in the paper. With `curve_every=N` the accuracy on the tasks seen so far is kept
    every N steps. Result: see `Result`; `model` holds the trained weights.

    Examples:
        >>> from ogd import benchmarks
        >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(20) % 4 // 2
        >>> benchmark = benchmarks.from_datasets([((x, y), (x, y))])
        >>> result = train(benchmark, StackedMLP((4, 8, 2), runs=2), lr=0.5, epochs=20)
        >>> result.average_accuracy.tolist()
        [1.0, 1.0]
    """
    _check(benchmark, model, epochs, batch_size, lr, curve_every)
    method = method or SGD()
    total = epochs * sum(math.ceil(len(task.train) / batch_size) for task in benchmark.tasks)
    display = Display(f"{benchmark.name} {method.name}") if progress is True else None
    report = display or (progress if not isinstance(progress, bool) else Silent())
    began = time.perf_counter()
    with display or nullcontext():
        report.start(total)
        columns = [task.columns(model.runs) for task in benchmark.tasks]
        state = _State(benchmark, model, method, columns, report, curve_every)
        accuracy = [evaluate(model, benchmark.tasks, columns)]
        for t in range(len(benchmark)):
            _train_task(state, t, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed)
            method.end_task(model, benchmark.tasks[t])
            accuracy.append(evaluate(model, benchmark.tasks, columns))
    points = np.stack(state.curve, 1) if state.curve else np.empty((len(model.runs), 0, len(benchmark)))
    return Result(model.runs, np.stack(accuracy, 1), state.curve_steps, points, time.perf_counter() - began)


def _train_task(state: _State, t: int, *, epochs: int, batch_size: int, lr: float, seed: int) -> None:
    model, method, tasks = state.model, state.method, state.benchmark.tasks
    sources = method.examples(tasks[: t + 1])
    columns = [state.columns[tasks.index(task)] for task in sources]
    total, n = sum(len(task.train) for task in sources), len(tasks[t].train)
    for epoch in range(epochs):
        index = order(seed, model.runs, f"order/{t}/{epoch}", total, n)
        note = f"task {t + 1}/{len(tasks)}, epoch {epoch + 1}/{epochs}"
        for batch in batches(sources, index, columns, model.sizes[-1], batch_size):
            step(model, method, batch, lr)
            state.step += 1
            state.report.advance(1, note)
            if state.curve_every and state.step % state.curve_every == 0:
                _add_point(state, t)
        _check_finite(model, f"{method.name} at lr {lr:g}, in {note}")


def step(model: StackedMLP, method: Method, batch: Batch, lr: float) -> None:
    """Take one step: w ← w − η (transform(∂L/∂w) + penalty(w))."""
    inputs, logits = model.activations(batch.x.to(model.layers[0][0].dtype))
    if batch.head is not None:
        logits += batch.head
    delta = logits.softmax(-1).sub_(batch.target).div_(batch.x.shape[1])  # ∂L/∂logits
    gradient = method.transform(model.backward(inputs, delta), model)
    penalty = method.penalty(model)
    model.descend(gradient, lr)
    if penalty is not None:
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), penalty, alpha=-lr)


def _add_point(state: _State, t: int) -> None:
    point = np.full((len(state.model.runs), len(state.benchmark)), np.nan)
    point[:, : t + 1] = evaluate(state.model, state.benchmark.tasks[: t + 1], state.columns[: t + 1])
    state.curve_steps.append(state.step)
    state.curve.append(point)


def _check_finite(model: StackedMLP, where: str) -> None:
    finite = torch.stack([w.flatten(1).isfinite().all(1) for w in model.parameters()]).all(0)  # (R,)
    if not finite.all():
        runs = [run for run, good in zip(model.runs, finite.tolist(), strict=True) if not good]
        raise Diverged(f"the weights of run {', '.join(map(str, runs))} are not finite: {where}; lower the lr")


def _check(
    benchmark: Benchmark, model: StackedMLP, epochs: int, batch_size: int, lr: float, curve_every: int | None
) -> None:
    if not isinstance(model, StackedMLP):
        raise TypeError(
            f"model: must be an ogd.models.StackedMLP, not {type(model).__name__}; "
            "StackedMLP.from_modules([model]) makes one of an nn.Sequential"
        )
    at_least(1, epochs=epochs, batch_size=batch_size, curve_every=curve_every)
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr: must be a positive number, not {lr}")
    smallest = min(benchmark.tasks, key=lambda task: len(task.train))
    if batch_size > len(smallest.train):
        raise ValueError(
            f"batch_size: {batch_size} is above the {len(smallest.train)} training examples of {smallest.name}"
        )
    if (model.sizes[0], model.sizes[-1]) != (benchmark.inputs, benchmark.outputs):
        raise ValueError(
            f"model: maps {model.sizes[0]} inputs to {model.sizes[-1]} logits where the benchmark "
            f"has {benchmark.inputs} inputs and {benchmark.outputs} classes"
        )
