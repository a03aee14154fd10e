"""Optimizers that are held by their step hooks, until they are let go."""

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from torch.optim import Optimizer

protected: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
Hook = Callable[..., Any]
STEP = Optimizer.profile_hook_step(lambda: None).__code__  # what PyTorch wraps `step` in: it runs the hooks


def may_nest(optimizer: Optimizer) -> bool:
    """Whether a step of the optimizer may call that of its base class, for which PyTorch runs the hooks again.

    Examples:
        >>> import torch
        >>> may_nest(torch.optim.SGD([torch.zeros(1)]))
        False
    """
    return sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not Optimizer) > 1


class Hooked:
    """Optimizers under protection, until `unprotect`; as a context manager it ends with the block."""

    loss: float | None = None  # of the last rehearsal, where there is one

    def __init__(self, optimizers: Sequence[Optimizer], before: Hook, after: Hook | None, ended: Callable[[Any], None]):
        # weak: the optimizers hold us by their hooks, and what is pending must outlive them
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._ended = ended
        self._inside: set[int] = set()  # optimizers whose step has begun and not ended
        self._deeper: list[int] = []  # those of them whose step has called that of their base class
        self._handles = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(before))
            if after is not None:
                self._handles.append(optimizer.register_step_post_hook(after))
            protected.add(optimizer)

    def _within_a_step(self, optimizer: Optimizer) -> bool:
        """Whether a step begins inside one of the same optimizer.

        PyTorch runs the hooks for both where the step of a subclass calls `super().step()`. After a step that an
        error has ended, the next one begins anew.
        """
        if id(optimizer) not in self._inside:
            return False
        frame: FrameType | None = sys._getframe()
        steps = 0
        while frame is not None:
            steps += frame.f_code is STEP and frame.f_locals.get("self") is optimizer
            frame = frame.f_back
        if steps < 2:
            self._deeper.clear()
            return False
        self._deeper.append(id(optimizer))
        return True

    def _ended_step(self, optimizer: Optimizer, *_: Any) -> bool:
        """Note that a step has ended; return whether it is the outermost."""
        if self._deeper and id(optimizer) in self._deeper:
            self._deeper.remove(id(optimizer))
            return False
        self._inside.discard(id(optimizer))
        return True

    @property
    def held(self) -> str:
        """The optimizers in words, for a repr."""
        names = [type(optimizer).__name__ for ref in self._optimizers if (optimizer := ref()) is not None]
        return ", ".join(names) if self.active else "ended"

    @property
    def active(self) -> bool:
        return bool(self._handles) and any(ref() is not None for ref in self._optimizers)

    def protects(self, optimizer: Optimizer) -> bool:
        return any(ref() is optimizer for ref in self._optimizers)

    def settle(self) -> None:
        """Bring the weights to where protection wants them."""

    def forget(self) -> None:
        """What is remembered has changed."""

    def settle_others(self, protections: "Iterable[Hooked]") -> None:
        """Let others of the same weights settle before a window of steps begins."""

    def unprotect(self) -> None:
        """Settle, and leave the optimizers alone from now on."""
        if not self._handles:  # ended before: the optimizer may be under another protection by now
            return
        self.settle()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for ref in self._optimizers:
            optimizer = ref()
            if optimizer is not None:
                protected.discard(optimizer)
        self._ended(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unprotect()
