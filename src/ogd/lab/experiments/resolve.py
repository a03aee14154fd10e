"""Arguments → a request, with the paper's defaults, or an error that names the argument.

This is where a request is checked: against the catalogue, the benchmark's rules and the data set. Whoever has a request
can carry it out. Never imports torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ogd.checks import ArgumentError, check_name, check_whole
from ogd.lab import catalogue
from ogd.lab.benchmarks.rules import rules_of
from ogd.lab.data import Dataset
from ogd.lab.records.request import HIDDEN, MOST_TASKS, Request, Schedule

MOST_POINTS = 100_000  # numbers of a curve: one for each point and task


def resolve(
    benchmark: str,
    method: str,
    dataset: Dataset,
    *,
    tasks: int | None = None,
    model: str = catalogue.DEFAULT_MODEL,
    hidden: Sequence[int] | None = None,
    init: str = catalogue.DEFAULT_INIT,
    biases: bool = True,
    epochs: int = Schedule.epochs,
    batch_size: int = Schedule.batch_size,
    lr: float = Schedule.lr,
    optimizer: str = Schedule.optimizer,
    momentum: float = Schedule.momentum,
    keep_optimizer: bool = Schedule.keep_optimizer,
    seed: int = Schedule.seed,
    curve_every: int | None = Schedule.curve_every,
    **own: Any,
) -> Request:
    """Return the request for these arguments, or raise a ValueError that names the argument which is wrong.

    `own` holds the benchmark's own settings and the method's own options; None means not given.

    Examples:
        >>> from ogd.lab.data import load
        >>> resolve("rotated", "ogd", load(), per_task=100).angles
        (0.0, 10.0, 20.0, 30.0, 40.0)
    """
    check_name("benchmark", benchmark, catalogue.BENCHMARKS)
    check_name("method", method, catalogue.METHODS)
    check_name("model", model, HIDDEN)
    check_name("init", init, catalogue.INITS)
    if not isinstance(biases, bool):
        raise ArgumentError("biases", f"must be True or False, not {biases!r}")
    schedule = Schedule(epochs, batch_size, lr, optimizer, momentum, keep_optimizer, seed, curve_every)
    settings, options = _split_options(benchmark, method, own)
    check_tasks(tasks, settings)
    request = Request(
        benchmark=benchmark,
        method=method,
        hidden=resolve_hidden(model, hidden),
        options=catalogue.METHODS[method].resolve(options, benchmark, optimizer, model),
        data=dataset.name,
        data_sha256=dataset.sha256,
        init=init,
        model=model,
        biases=biases,
        **_request_fields(benchmark, rules_of(benchmark).resolve(tasks, dataset, settings)),
        **{**asdict(schedule), "lr": float(lr), "momentum": float(momentum)},
    )
    check_fit(request, dataset)
    return request


def check_fit(request: Request, dataset: Dataset) -> None:
    """Raise a ValueError for a request that could not be carried out with a data set's images and classes."""
    _check_memory(request, max(dataset.classes) + 1)
    pixels, least = dataset.train_images.shape[-2:], catalogue.LEAST_PIXELS[request.model]
    if min(pixels) < least:
        found = " × ".join(map(str, pixels))
        raise ArgumentError("model", f"a {request.model} takes images from {least} × {least} pixels on, not {found}")
    sizes = rules_of(request.benchmark).sizes(request, dataset)
    if request.batch_size > min(sizes):
        raise ArgumentError(
            "batch_size", f"{request.batch_size} is above the {min(sizes):,} training examples of the smallest task"
        )
    steps = request.schedule.steps(*sizes)
    if request.curve_every is not None and steps // request.curve_every * request.tasks > MOST_POINTS:
        least = math.ceil(steps * request.tasks / MOST_POINTS)
        raise ArgumentError(
            "curve_every",
            f"must be at least {least:,} for {steps:,} steps and {request.tasks} tasks, not "
            f"{request.curve_every:,}: a curve has at most {MOST_POINTS:,} numbers",
        )


def _check_memory(request: Request, classes: int) -> None:
    """Raise a ValueError if a method may not store an example per task, or all logits of one example."""
    in_total, per_task = (int(request.options.get(name, 0)) for name in ("in_total", "per_task"))
    if request.partition is not None and request.heads == "multi":
        classes = max(map(len, request.partition))
    each = classes if request.options.get("outputs") == "all" else 1
    if 0 < in_total < request.tasks * each:
        what = "an example per task" if each == 1 else "the logits of an example per task"
        raise ArgumentError("in_total", f"must be at least {request.tasks * each}, {what}, not {in_total}")
    if not in_total and 0 < per_task < each:
        raise ArgumentError("per_task", f"must be at least {each}, the logits of one example, not {per_task}")


def check_tasks(tasks: int | None, settings: Mapping[str, Any]) -> None:
    """Raise a ValueError if there are more tasks than a record can hold, before anything is made for them."""
    check_whole(1, optional=("tasks",), tasks=tasks)
    if tasks is not None and tasks > MOST_TASKS:
        raise ArgumentError("tasks", f"must be at most {MOST_TASKS}, not {tasks:,}")
    angles = settings.get("angles")
    if isinstance(angles, Sequence) and len(angles) > MOST_TASKS:
        raise ArgumentError("angles", f"must be at most {MOST_TASKS}, one per task, not {len(angles):,}")


def resolve_hidden(model: str, hidden: Sequence[int] | None) -> tuple[int, ...]:
    """Return the units of a model's hidden linear layers; a CNN has exactly one."""
    if hidden is None:
        return HIDDEN[model]
    if not hidden:
        raise ArgumentError("hidden", "give at least one layer")
    for units in hidden:
        check_whole(1, hidden=units)
    if model == "cnn" and len(hidden) != 1:
        raise ArgumentError("hidden", f"a cnn has one hidden linear layer, not {len(hidden)}")
    return tuple(hidden)


def _split_options(benchmark: str, method: str, own: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split what was given into the benchmark's settings and the method's options; raise for anything else."""
    given = {name: value for name, value in own.items() if value is not None}
    settings = {option.name for option in catalogue.BENCHMARKS[benchmark].settings}
    options = {option.name for option in catalogue.METHODS[method].options}
    for name in given.keys() - settings - options:
        owners = [b for b, entry in catalogue.BENCHMARKS.items() if name in {option.name for option in entry.settings}]
        if owners:
            raise ArgumentError(name, f"is for benchmark {' or '.join(map(repr, owners))}, not {benchmark!r}")
        has = f", which has {', '.join(sorted(options))}" if options else ", which has none"
        raise ArgumentError(name, f"is no option of {method}{has}")
    return (
        {name: value for name, value in given.items() if name in settings},
        {name: value for name, value in given.items() if name in options},
    )


def _request_fields(benchmark: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that hold the settings of its benchmark.

    Some settings of our own benchmarks have fields of their own, and `settings` holds the others. A setting that was
    added after a benchmark's first records is omitted while it is at its default.
    """
    ours = dict.fromkeys(("tasks", "angles", "partition", "heads"))
    usual = {option.name: option.default for option in catalogue.BENCHMARKS[benchmark].settings if option.later}
    return {
        **ours,
        **{name: value for name, value in settings.items() if name in ours},
        "settings": {
            name: value
            for name, value in settings.items()
            if name not in ours and (name not in usual or value != usual[name])
        },
    }
