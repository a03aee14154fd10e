"""`train`: a benchmark, a model and a method → a result."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from torch import nn

from ogd.checks import ArgumentError
from ogd.lab.benchmarks import Benchmark
from ogd.lab.methods import SGD, Method
from ogd.lab.models.modules import StackedModules
from ogd.lab.models.stack import Stack
from ogd.lab.progress import Display, Reporter, Silent
from ogd.lab.records.request import Schedule
from ogd.lab.training.checkpoint import Checkpoint, History
from ogd.lab.training.evaluation import Result
from ogd.lab.training.loop import Training, run


def train(
    benchmark: Benchmark,
    model: Stack | Callable[[], nn.Module],
    method: Method | None = None,
    *,
    runs: int | Sequence[int] | None = None,
    epochs: int = Schedule.epochs,
    batch_size: int = Schedule.batch_size,
    lr: float = Schedule.lr,
    optimizer: str = Schedule.optimizer,
    momentum: float = Schedule.momentum,
    keep_optimizer: bool = Schedule.keep_optimizer,
    seed: int = Schedule.seed,
    curve_every: int | None = Schedule.curve_every,
    first: History | None = None,
    checkpoint: Checkpoint | None = None,
    check: bool = True,
    progress: bool | Reporter = True,
) -> Result:
    """Train every run of `model` on the tasks one after the other, evaluating on all tasks after each.

    `model` is a stack, or a function that makes an `nn.Module`, of which `runs` are trained (1 unless given). The
    loss is softmax cross-entropy over the task's head, averaged over the batch. The optimizer is torch.optim's SGD,
    with `momentum`, or Adam, a new one for every task; `keep_optimizer=True` keeps Adam's moments from one task to the
    next. With `curve_every=N` the accuracy on the tasks seen so far is recorded every N steps. `first` is the first
    task, already trained: it is the same for all methods (see `first_task`). Training resumes from `checkpoint`, which
    is written after tasks and epochs, and the result is the same as without a break. Weights that are no longer finite
    raise `Diverged`, and runs that end dead (`result.dead`), with the same outputs for most test inputs, cause a
    warning, unless `check` is false. `result.model` holds the trained weights.

    Examples:
        >>> import torch
        >>> from ogd.lab import benchmarks
        >>> x, y = torch.eye(4).repeat(5, 1), torch.arange(20) % 4 // 2
        >>> benchmark = benchmarks.from_datasets([((x, y), (x, y))])
        >>> result = train(benchmark, lambda: nn.Linear(4, 2), runs=2, lr=0.5, epochs=20)
        >>> result.average_accuracy.tolist()
        [1.0, 1.0]
        >>> result.model.module(1)
        Linear(in_features=4, out_features=2, bias=True)
    """
    schedule = Schedule(epochs, batch_size, lr, optimizer, momentum, keep_optimizer, seed, curve_every)
    method = SGD() if method is None else method
    stack = _stack(model, runs, seed)
    _check(benchmark, stack, method, schedule, first, checkpoint)
    display = Display(f"{benchmark.name} {method.name}") if progress is True else None
    report = display or (progress if not isinstance(progress, bool) else Silent())
    training = Training(benchmark, stack, method, schedule, report, check, checkpoint)
    with display or nullcontext():
        result = run(training, first)
    if check:
        _warn_of_dead(result, training)
    return result


def first_task(
    benchmark: Benchmark,
    model: Stack,
    schedule: Schedule,
    report: Reporter,
    checkpoint: Checkpoint | None = None,
) -> History:
    """Train `model` on the first task only, as every method does, for `train` to take over."""
    alone = replace(benchmark, tasks=benchmark.tasks[:1])
    training = Training(alone, model, SGD(), schedule, report, checkpoint=checkpoint)
    seconds = run(training, None).seconds
    return replace(training.history, seconds=seconds)


def _warn_of_dead(result: Result, training: Training) -> None:
    runs = [str(run) for run, dead in zip(result.runs, result.dead, strict=True) if dead]
    if runs:
        which = f"run{'s' * (len(runs) > 1)} {', '.join(runs)} of {training.method!r} on {training.benchmark.name}"
        warnings.warn(
            f"{which} ended dead: most test inputs of every task get the same outputs. Usually a step was too large: "
            f"lower lr, which is {training.schedule.lr:g}, or the weight of what the method adds",
            stacklevel=3,
        )


def _stack(model: Stack | Callable[[], nn.Module], runs: int | Sequence[int] | None, seed: int) -> Stack:
    if isinstance(model, Stack):
        if runs is not None:
            raise ArgumentError(
                "runs", "a stack already has its runs; give runs= only with a function that makes a module"
            )
        return model
    if isinstance(model, nn.Module) or not callable(model):
        raise TypeError(
            f"model: must be a stack such as ogd.lab.models.StackedMLP, or a function that makes an nn.Module, not "
            f"{type(model).__name__}; ogd.lab.models.StackedModules([module]) makes a stack of one"
        )
    return StackedModules.made(model, runs=1 if runs is None else runs, seed=seed)


def _check(
    benchmark: Benchmark,
    model: Stack,
    method: Method,
    schedule: Schedule,
    first: History | None,
    checkpoint: Checkpoint | None,
) -> None:
    if not isinstance(checkpoint, Checkpoint | None):
        raise TypeError(f"checkpoint: must be an ogd.lab.training.Checkpoint, not {checkpoint!r}")
    if not isinstance(first, History | None):
        raise TypeError(f"first: must be what ogd.lab.training.first_task returned, not {first!r}")
    if not isinstance(method, Method):
        raise TypeError(f"method: must be an ogd.lab.methods.Method such as ogd.lab.methods.OGD(), not {method!r}")
    smallest = min(benchmark.tasks, key=lambda task: len(task.train))
    n, size = len(smallest.train), schedule.batch_size
    if size > n:
        raise ArgumentError("batch_size", f"{size} is above the {n} training examples of {smallest.name}")
    try:
        outputs = model.logits(benchmark.tasks[0].train.x[:1]).shape[-1]
    except (RuntimeError, ValueError) as error:
        raise ArgumentError("model", f"cannot take inputs of shape {benchmark.shape}: {error}") from error
    if outputs != benchmark.outputs:
        raise ArgumentError("model", f"has {outputs} logits where the benchmark has {benchmark.outputs} classes")
