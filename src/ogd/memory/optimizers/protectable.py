"""Find the optimizers inside wrappers, and check that they can be protected."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.optim import LBFGS, Optimizer


def optimizers_in(given: object) -> list[Optimizer]:
    """Return the optimizers in an argument: one, one in a wrapper, or several, which are protected together."""
    if isinstance(given, Mapping):  # {parameter: optimizer}, for optimizers that step in the backward pass
        given = given.values()
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, Optimizer) else [given]
    if not several:
        raise ValueError("optimizer is an empty list: give one optimizer, or several that step in turn")
    found = [hooked_optimizer(one) for one in several]
    ids = [id(one) for outer in found for one in (outer, *inner_optimizers(outer))]
    if len(set(ids)) < len(ids):
        raise ValueError("optimizer holds a duplicate: give each optimizer once")
    return found


def hooked_optimizer(optimizer: Any) -> Optimizer:
    """Return the outermost optimizer with step hooks of its own: the argument, its `.optimizer`, or one further in."""
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
    """Return the optimizers inside another that share some of its parameters, such as the `base_optimizer` of SAM.

    They may step without a `step` of the outer optimizer, as in SAM's `second_step`.
    """
    found = [optimizer]
    for outer in found:  # the list grows meanwhile
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
    """Raise if the steps of an optimizer cannot be protected, or are protected already."""
    for optimizer in (one for outer in optimizers for one in (outer, *inner_optimizers(outer))):
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS cannot be protected: inside one step it moves the weights several times and judges each "
                "move by the loss, which a protection outside it would contradict; use SGD, Adam or the like"
            )
        if getattr(optimizer, "_overlap_with_ddp", False):
            raise ValueError(
                "ZeroRedundancyOptimizer(overlap_with_ddp=True) cannot be protected: it moves the weights during the "
                "backward pass, not in step(); use overlap_with_ddp=False"
            )
        if is_protected(optimizer):
            raise ValueError(
                "this optimizer is protected already, by this memory or another: call unprotect(optimizer) of that "
                "memory first"
            )


def warn_of_averages(optimizers: Iterable[Optimizer]) -> bool:
    """Warn of a schedule-free optimizer, whose `eval` moves the weights to an average that is not projected."""
    for optimizer in optimizers:
        if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
            warnings.warn(
                f"{type(optimizer).__name__} moves the weights in eval() and train() as well as in step(), and only "
                "step() is projected, so remembered outputs will change: protect the inner optimizer of "
                "ScheduleFreeWrapper, or use an ExampleMemory (docs/loops.md)",
                stacklevel=3,
            )
            return True
    return False


def _held(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _has_hooks(optimizer: object) -> bool:
    # a wrapper may derive from Optimizer and never call its __init__
    if not isinstance(optimizer, Optimizer) or "_optimizer_step_pre_hooks" not in vars(optimizer):
        return False
    # another may share all attributes of its inner optimizer, including the hooks
    inner = getattr(optimizer, "optimizer", None)
    return getattr(inner, "_optimizer_step_pre_hooks", None) is not optimizer._optimizer_step_pre_hooks
