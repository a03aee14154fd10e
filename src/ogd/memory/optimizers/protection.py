"""Optimizers under protection, through their step hooks, until they are released."""

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
STEP = Optimizer.profile_hook_step(lambda: None).__code__  # what PyTorch wraps `step` in: it runs the hooks
VERSION = attrgetter("_version")


class ProtectingMemory(Protocol):
    """What a protection asks of its memory."""

    def _end(self, *ending: "Protection") -> None:
        """Take protections from the memory's list, before they remove their hooks."""


def is_protected(optimizer: Optimizer) -> bool:
    """Whether a memory, whichever, protects the optimizer."""
    found = protections.get(optimizer)
    return found is not None and found.active


def may_nest(optimizer: Optimizer) -> bool:
    """Whether a step of the optimizer may call another whose hooks are ours too: its base class's, or an inner one's.

    Examples:
        >>> import torch
        >>> may_nest(torch.optim.SGD([torch.zeros(1)]))
        False
    """
    own = sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not Optimizer)
    return own > 1 or bool(inner_optimizers(optimizer))


class Protection:
    """Optimizers under protection, until `unprotect`; as a context manager it ends with the block.

    An optimizer inside another (SAM's `base_optimizer`) has the same hooks: its step counts as one of the outer
    optimizer, unless it is a part of one.
    """

    pending = 0  # steps that are not projected yet

    def __init__(self, memory: ProtectingMemory, optimizers: Sequence[Optimizer], post_hook: bool = True):
        self._memory = memory
        # weak: the optimizers hold us by their hooks, and what is pending must outlive them
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._post_hook = post_hook  # whether the end of a step must be known
        self._members = {id(one): {id(one), *map(id, inner_optimizers(one))} for one in optimizers}
        self._inside: set[int] = set()  # optimizers whose step has begun and not ended
        self._nested: list[int] = []  # those of them whose step has called another of ours
        self._handles: list[Any] = []
        self.enabled = False  # until it is set, and once it is not, the hooks do nothing
        self.stepped = False  # since the last task was remembered

    def hook(self) -> None:
        """Hook the optimizers."""
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
        """Whether a step begins inside one of the same optimizer.

        PyTorch runs the hooks for both where the step of a subclass calls `super().step()`, or that of an optimizer
        inside. After a step that an error has ended, the next one begins anew.
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

    def _is_outermost(self, optimizer: Optimizer) -> bool:
        """Whether the step that has ended is not a part of another."""
        if self._nested and id(optimizer) in self._nested:
            self._nested.remove(id(optimizer))
            return False
        return True

    @property
    def _names(self) -> str:
        """The optimizers in words, for a repr."""
        return ", ".join(type(optimizer).__name__ for optimizer in self._live()) if self.active else "ended"

    @property
    def active(self) -> bool:
        return self.enabled and bool(self._live())

    def protects(self, optimizer: Optimizer) -> bool:
        return any(optimizer in (one, *inner_optimizers(one)) for one in self._live())

    def settle(self) -> None:
        """Bring the weights to where protection wants them, if something is pending."""

    def reset(self) -> None:
        """Drop what depends on the contents of the memory, because they have changed."""

    def unprotect(self) -> None:
        """Settle, and leave the optimizers alone from now on.

        If an exception interrupts it, the optimizers are protected as before or not at all, and it can be repeated.
        """
        if self.enabled:
            self.settle()
            self._memory._end(self)
            self.enabled = False
        for handle in self._handles:
            handle.remove()
        for optimizer in self._live():
            for one in (optimizer, *inner_optimizers(optimizer)):
                if protections.get(one) is self:  # and not another protection by now
                    del protections[one]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unprotect()


def _as_step_of(optimizer: Optimizer, one: Optimizer, hook: Hook) -> Hook:
    """The hook, called for a step of one optimizer as for a step of another."""
    return hook if one is optimizer else lambda _, *args: hook(optimizer, *args)


def versions(params: Iterable[Tensor]) -> list[int]:
    """Return the version counters of parameters: an in-place change raises them, a write through .data does not."""
    return list(map(VERSION, params))
