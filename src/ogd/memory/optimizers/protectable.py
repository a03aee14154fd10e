"""Which optimizers can be protected, and those inside a wrapper whose steps move the weights."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.optim import LBFGS, Optimizer


def optimizers_in(given: object) -> list[Optimizer]:
    """The optimizers that are meant: one, one in a wrapper, or several, which are then projected together."""
    if isinstance(given, Mapping):  # {parameter: its optimizer}, as for optimizers in the backward pass
        given = given.values()
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, Optimizer) else [given]
    if not several:
        raise ValueError("optimizer is an empty list: give one optimizer, or several that step in turn")
    found = [hooked_optimizer(one) for one in several]
    ids = [id(one) for outer in found for one in (outer, *inner_optimizers(outer))]
    if len(set(ids)) < len(ids):
        raise ValueError("optimizer: a duplicate; give each optimizer once")
    return found


def hooked_optimizer(optimizer: Any) -> Optimizer:
    """The outermost optimizer with step hooks of its own: a wrapper's `.optimizer`, and so on inwards."""
    inner, seen = optimizer, set()
    while not _has_hooks(inner):
        seen.add(id(inner))
        inner = getattr(inner, "optimizer", None) if hasattr(inner, "zero_grad") else None
        if inner is None or id(inner) in seen:
            raise TypeError(
                "optimizer must be a torch.optim.Optimizer, a wrapper with one as its .optimizer, or a list of them, "
                f"not {type(optimizer).__name__}"
            )
    return inner  # type: ignore[no-any-return]


def inner_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers inside another that hold some of its parameters, such as the `base_optimizer` of SAM.

    They may be called without the outer one's `step`: SAM's `second_step` does.
    """
    found = [optimizer]
    for outer in found:  # grows
        held = _held(outer)
        found += [
            one
            for one in vars(outer).values()
            if isinstance(one, Optimizer)
            and all(one is not known for known in found)
            and _has_hooks(one)
            and not held.isdisjoint(_held(one))
        ]
    return found[1:]


def check_protectable(optimizers: Iterable[Optimizer], is_protected: Callable[[Optimizer], bool]) -> None:
    """Whether what the optimizers do in a step can be projected afterwards."""
    for optimizer in (one for outer in optimizers for one in (outer, *inner_optimizers(outer))):
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS cannot be protected: inside one step it moves the weights several times and judges each "
                "move by the loss, which a projection afterwards would contradict; use SGD, Adam or the like"
            )
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise ValueError(
                "ZeroRedundancyOptimizer(overlap_with_ddp=True) cannot be protected: it moves the weights during the "
                "backward pass, not in step(); use overlap_with_ddp=False"
            )
        if is_protected(optimizer):
            raise ValueError("this optimizer is protected already: call unprotect(optimizer) first")


def warn_of_averages(optimizers: Iterable[Optimizer]) -> bool:
    """Warn of a schedule-free optimizer, whose `eval` moves the weights to an average of what was not projected."""
    for optimizer in optimizers:
        if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
            warnings.warn(
                f"{type(optimizer).__name__} moves the weights in eval() and train() as well as in step(), where alone "
                "they are projected, so remembered outputs will change: protect the inner optimizer of "
                "ScheduleFreeWrapper, or use an ExampleMemory (docs/loops.md)",
                stacklevel=3,
            )
            return True
    return False


def _held(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _has_hooks(optimizer: object) -> bool:
    # a wrapper may call itself an Optimizer and never have been made as one
    if not isinstance(optimizer, Optimizer) or "_optimizer_step_pre_hooks" not in vars(optimizer):
        return False
    # and another may have taken over all that its inner one has, the hooks included
    inner = getattr(optimizer, "optimizer", None)
    return getattr(inner, "_optimizer_step_pre_hooks", None) is not optimizer._optimizer_step_pre_hooks
