"""Protect optimizers through their step hooks, until they are released."""

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from torch import Tensor
from torch.optim import Optimizer

from ogd.memory.optimizers.protectable import inner_optimizers

protections: "weakref.WeakKeyDictionary[Optimizer, Protection]" = weakref.WeakKeyDictionary()
Hook = Callable[..., Any]
STEP = Optimizer.profile_hook_step(lambda: None).__code__  # PyTorch's wrapper of `step`, which runs the hooks
VERSION = attrgetter("_version")


class ProtectingMemory(Protocol):
    """A memory as a protection needs it."""

    def _end(self, *ending: "Protection") -> None:
        """Remove protections from the memory's list, before they remove their hooks."""


def is_protected(optimizer: Optimizer) -> bool:
    """Return whether any memory protects the optimizer."""
    found = protections.get(optimizer)
    return found is not None and found.active


def may_nest(optimizer: Optimizer) -> bool:
    """Return whether a step may call another with our hooks: that of a base class, or of an inner optimizer.

    Examples:
        >>> import torch
        >>> may_nest(torch.optim.SGD([torch.zeros(1)]))
        False
    """
    own = sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not Optimizer)
    return own > 1 or bool(inner_optimizers(optimizer))


class Protection:
    """Optimizers under protection, until `unprotect`; as a context manager, until the end of the block.

    An optimizer inside another (SAM's `base_optimizer`) has the same hooks. Its step counts as a step of the outer
    optimizer, unless it is a part of one.
    """

    pending = 0  # steps that are not projected yet

    def __init__(self, memory: ProtectingMemory, optimizers: Sequence[Optimizer], post_hook: bool = True):
        self._memory = memory
        # weak: the optimizers refer to us by their hooks, and pending steps must outlive them
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._post_hook = post_hook  # whether a hook after the step is needed
        self._members = {id(one): {id(one), *map(id, inner_optimizers(one))} for one in optimizers}
        self._inside: set[int] = set()  # optimizers whose step has begun and not ended
        self._nested: list[int] = []  # those whose step has called another step with our hooks
        self._handles: list[Any] = []
        self.enabled = False  # unless it is set, the hooks do nothing
        self.stepped = False  # whether there was a step since the last task was remembered

    def hook(self) -> None:
        """Register the hooks of the optimizers."""
        for optimizer in self._live():
            for one in (optimizer, *inner_optimizers(optimizer)):
                self._handles.append(one.register_step_pre_hook(_as_step_of(optimizer, one, self._before_step)))
                if self._post_hook:
                    self._handles.append(one.register_step_post_hook(_as_step_of(optimizer, one, self._after_step)))
                protections[one] = self

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise NotImplementedError

    def _live(self) -> list[Optimizer]:
        return [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]

    def _within_a_step(self, optimizer: Optimizer) -> bool:
        """Return whether a step begins inside another step of the same optimizer.

        If the step of a subclass calls `super().step()` or an inner optimizer, PyTorch runs the hooks for both steps.
        After a step that an error has interrupted, the next step is an outer one again.
        """
        if id(optimizer) not in self._inside:
            return False
        frame: FrameType | None = sys._getframe()
        steps, members = 0, self._members[id(optimizer)]
        while frame is not None:
            steps += frame.f_code is STEP and id(frame.f_locals.get("self")) in members
            frame = frame.f_back
        if steps < 2:
            self._nested.clear()
            return False
        self._nested.append(id(optimizer))
        return True

    def under_way(self) -> bool:
        """Return whether one of the optimizers' steps is being made, for example while its closure is called."""
        if not self._inside:
            return False
        members = set().union(*self._members.values())
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is STEP and id(frame.f_locals.get("self")) in members:
                return True
            frame = frame.f_back
        return False

    def _is_outermost(self, optimizer: Optimizer) -> bool:
        """Return whether the step that has ended is not a part of another."""
        if self._nested and id(optimizer) in self._nested:
            self._nested.remove(id(optimizer))
            return False
        return True

    @property
    def _names(self) -> str:
        """The names of the optimizers' classes, for a repr."""
        return ", ".join(type(optimizer).__name__ for optimizer in self._live()) if self.active else "ended"

    @property
    def progress(self) -> list[Any]:
        """What a protection in another process needs to continue alike, as JSON values."""
        raise NotImplementedError

    @property
    def active(self) -> bool:
        return self.enabled and bool(self._live())

    def protects(self, optimizer: Optimizer) -> bool:
        return any(optimizer in (one, *inner_optimizers(one)) for one in self._live())

    def settle(self) -> None:
        """Project the pending steps, if there are any."""

    def reset(self) -> None:
        """Drop all that depends on the contents of the memory, because they have changed."""

    def unprotect(self) -> None:
        """Settle, and end the protection of the optimizers.

        If an exception interrupts it, the optimizers are protected as before or not at all; call it again.
        """
        if self.enabled:
            self.settle()
            self._memory._end(self)
            self.enabled = False
        for handle in self._handles:
            handle.remove()
        for optimizer in self._live():
            for one in (optimizer, *inner_optimizers(optimizer)):
                if protections.get(one) is self:  # and not a newer protection
                    del protections[one]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unprotect()


def _as_step_of(optimizer: Optimizer, one: Optimizer, hook: Hook) -> Hook:
    """Return the hook for optimizer `one`, called as if `optimizer` had stepped."""
    return hook if one is optimizer else lambda _, *args: hook(optimizer, *args)


def versions(params: Iterable[Tensor]) -> list[int]:
    """Return the version counters of parameters: an in-place change raises them, a write through .data does not."""
    return list(map(VERSION, params))
