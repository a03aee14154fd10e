"""What callers hand to `Memory` is what it says it takes, or an error names the argument and what would be right."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn

from ogd.checks import check_name, is_whole
from ogd.memory.budget import Budget

Choice = Literal["uniform", "balanced", "uncertain"]
CHOICES: tuple[str, ...] = get_args(Choice)


def check_options(model: object, per_task: object, outputs: object, logits: object, chunk_size: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not {type(model).__name__}")
    _check_count("per_task", per_task)
    _check_count("chunk_size", chunk_size)
    if not (callable(outputs) or outputs in ("true", "mean", "all")):
        raise ValueError(
            f'outputs must be "true", "mean", "all" or a function (z, y) → (B,) or (B, k), not {outputs!r}'
        )
    _check_logits(logits)


def check_task(classes: object, logits: object, generator: object) -> None:
    if classes is not None:
        _check_classes(classes)
    _check_logits(logits)
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(
            f"generator must be a torch.Generator, not {type(generator).__name__}: for a seed give "
            "torch.Generator().manual_seed(seed)"
        )


def check_full(when_full: object, budget: object) -> None:
    if when_full not in ("raise", "shrink"):
        raise ValueError(f'when_full must be "raise" or "shrink", not {when_full!r}')
    if when_full == "shrink" and budget in (None, Budget()):
        raise ValueError('when_full="shrink" needs a budget= to shrink to: a number of directions, or bytes ("64MB")')


def check_draw(per_task: object, choose: object, merge: object, shared: bool) -> None:
    _check_count("per_task", per_task)
    check_name("choose", choose, CHOICES)
    if not is_whole(merge, 1):
        raise ValueError(f"merge must be a whole number, 1 or more, not {merge!r}")
    if merge != 1 and per_task is None:
        raise ValueError(f"merge={merge} makes per_task examples of {merge} times as many: give per_task= a number")
    if merge != 1 and shared:
        raise ValueError(f"merge={merge} is for one process: with several ranks use merge=1")
    if choose != "uniform" and per_task is None:
        raise ValueError(f'choose="{choose}" draws per_task examples: give per_task= a number')
    if choose == "uncertain" and shared:
        raise ValueError('choose="uncertain" is for one process: with several ranks use "uniform" or "balanced"')


def check_forgotten(task: object, n: int) -> None:
    if not is_whole(task, -math.inf):
        raise TypeError(f"task must be the place of a task in memory.tasks, a whole number, not {task!r}")
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
            wanted = f"the parameter {tuple(known[name])}" if name in known else "no parameter is named so"
            raise ValueError(f"update of {name!r} has shape {tuple(u.shape)}, {wanted}")
        if u.device.type == "cpu" and not bool(u.isfinite().all()):  # elsewhere the answer would have to be waited for
            raise ValueError(f"update of {name!r} is not finite: NaN or infinity would reach every parameter")


def check_parameters(model: nn.Module) -> None:
    """Raise if parameters have no values yet, or if FSDP has cut them into shards.

    Modules of FSDP are looked up only where they were imported.
    """
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_meta:
            raise ValueError(
                f"model: {name} is on the meta device, without values: give it some first, by "
                'model.to_empty(device="cpu") and model.load_state_dict(...)'
            )
    tensor, fsdp = sys.modules.get("torch.distributed.tensor"), sys.modules.get("torch.distributed.fsdp")
    cut = [name for name, p in model.named_parameters() if tensor is not None and isinstance(p, tensor.DTensor)]
    if fsdp is not None:
        cut += [f"{name}.*" for name, m in model.named_modules() if isinstance(m, fsdp.FullyShardedDataParallel)]
    if cut:
        raise ValueError(
            f"FSDP keeps only a shard of {cut[0]!r} on this rank ({len(cut)} such parameters or modules), and a memory "
            "needs whole gradients. Use DistributedDataParallel instead; to save memory there, "
            "ZeroRedundancyOptimizer divides the optimizer's state among the ranks and Memory(sharded=True) the "
            "stored gradients"
        )


def _check_count(name: str, value: object) -> None:
    if value is not None and not is_whole(value, 1):
        raise ValueError(f"{name} must be a whole number, 1 or more, or None, not {value!r}")


def _check_logits(logits: object) -> None:
    if logits is not None and not callable(logits):
        raise TypeError(f"logits must be a function (model, x) → tensor, not {logits!r}")


def _check_classes(classes: object) -> None:
    if not isinstance(classes, Sequence) or not all(is_whole(c, -math.inf) for c in classes):
        raise TypeError(f"classes must be a list of whole numbers, such as [0, 1], not {classes!r}")
    if not classes or min(classes) < 0 or len({int(c) for c in classes}) < len(classes):
        raise ValueError(f"classes must be different logit indices, one at least, none negative, not {classes}")
