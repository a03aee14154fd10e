"""Check the arguments of the memories; an error names the argument and what it must be."""

import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn

from ogd.checks import check_name, is_whole
from ogd.memory.blocks.block import DTYPES

Choice = Literal["uniform", "balanced"]


def check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not {type(model).__name__}")


def check_outputs(outputs: object) -> None:
    if not (callable(outputs) or outputs in ("true", "mean", "all")):
        raise ValueError(
            f'outputs must be "true", "mean", "all" or a function (z, y) → (B,) or (B, k), not {outputs!r}'
        )


def check_count(name: str, value: object) -> None:
    if not is_whole(value, 1):
        raise ValueError(f"{name} must be a whole number, 1 or more, not {value!r}")


def check_optional_count(name: str, value: object) -> None:
    if value is not None and not is_whole(value, 1):
        raise ValueError(f"{name} must be a whole number, 1 or more, or None, not {value!r}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def check_dtype(dtype: object) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise TypeError(f"dtype must be None or a floating-point type such as torch.bfloat16, not {dtype!r}")


def check_logits(logits: object) -> None:
    if logits is not None and not callable(logits):
        raise TypeError(f"logits must be a function (model, x) → tensor, not {logits!r}")


def check_functions(loss: object, collate: object, outputs: object, logits: object) -> None:
    """Check the functions of a memory that rehearses by a loss of the user's own."""
    given = {"loss": loss, "collate": collate, "outputs": outputs}
    for name, function in given.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {function!r:.60}")
        if function is not None and loss is None:
            raise ValueError(
                f"{name}= is for items that a loss= of your own rehearses: give loss= too, or leave it out"
            )
    if loss is not None and logits is not None:
        raise ValueError("logits= and loss= exclude each other: loss gets the model and the batch; leave logits= out")


def check_classes(classes: object) -> None:
    if classes is None:
        return
    if not isinstance(classes, Sequence) or not all(is_whole(c, -math.inf) for c in classes):
        raise TypeError(f"classes must be a list of whole numbers, such as [0, 1], not {classes!r}")
    if not classes or min(classes) < 0 or len({int(c) for c in classes}) < len(classes):
        raise ValueError(f"classes must be different logit indices, at least one and none negative, not {classes}")


def check_generator(generator: object) -> None:
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(
            f"generator must be a torch.Generator, not {type(generator).__name__}: for a seed give "
            "torch.Generator().manual_seed(seed)"
        )


def check_choice(choose: object, per_task: object) -> None:
    check_name("choose", choose, get_args(Choice))
    if choose != "uniform" and per_task is None:
        raise ValueError(f'choose="{choose}" draws per_task examples: give per_task= a number')


def check_merge(merge: object, per_task: object) -> None:
    check_count("merge", merge)
    if merge != 1 and per_task is None:
        raise ValueError(f"merge={merge} needs a number as per_task=")


def check_every(every: object, *, auto: bool) -> None:
    if not is_whole(every, 1) and not (auto and every in ("growing", "auto")):
        choices = ', "growing" or "auto"' if auto else ""
        raise ValueError(f"every must be a whole number of steps, 1 or more{choices}, not {every!r}")


def check_loss_weights(alpha: object, labels: object) -> None:
    if not _is_weight(alpha):
        raise ValueError(f"alpha must be a number, 0 or more, not {alpha!r}")
    check_flag("labels", labels)
    if alpha == 0 and not labels:
        raise ValueError("alpha=0 with labels=False rehearses nothing: give alpha= a weight, or labels=True")


def check_bound(bound: object) -> None:
    if bound is not None and not (_is_weight(bound) and bound):
        raise ValueError(f"bound must be a number above 0, or None for no bound, not {bound!r}")


def check_softness(softness: object) -> None:
    if not _is_weight(softness):
        raise ValueError(f"softness must be a number, 0 or more, not {softness!r}")


def check_task(task: object, n: int) -> None:
    if not is_whole(task, -math.inf):
        raise TypeError(f"task must be the place of a task in memory.task_sizes, a whole number, not {task!r}")
    if not -n <= int(task) < n:  # type: ignore[call-overload]
        raise IndexError(f"there is no task {task}: {n} tasks are remembered" + (f", 0 to {n - 1}" if n else ""))


def check_update(update: object, params: Mapping[str, Tensor]) -> None:
    if not isinstance(update, Mapping) or not all(isinstance(u, Tensor) for u in update.values()):
        raise TypeError("update must be a dictionary from names of parameters to tensors")
    known = {name: p.shape for name, p in params.items()}
    for name, u in update.items():
        if not u.is_floating_point() or u.layout is not torch.strided or u.is_meta:
            raise TypeError(
                f"update of {name!r} must be a dense tensor of floating-point numbers, not of {u.dtype} "
                f"({u.layout}, on {u.device})"
            )
        if u.shape != known.get(name):
            wanted = f"the parameter {tuple(known[name])}" if name in known else "the model has no such parameter"
            raise ValueError(f"update of {name!r} has shape {tuple(u.shape)}, {wanted}")
        if u.device.type == "cpu" and not bool(u.isfinite().all()):  # a GPU would have to be waited for
            raise ValueError(
                f"update of {name!r} is not finite: projected, NaN or infinity would reach every parameter"
            )


def _is_weight(value: object) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and bool(0 <= value <= sys.float_info.max)  # type: ignore[operator]
