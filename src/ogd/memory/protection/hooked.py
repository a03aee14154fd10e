"""Optimizers that are held by their step hooks, until they are let go."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from torch.optim import Optimizer

protected: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
Hook = Callable[..., Any]


class Hooked:
    """Optimizers under protection, until `unprotect`; as a context manager it ends with the block."""

    loss: float | None = None  # of the last rehearsal, where there is one

    def __init__(self, optimizers: Sequence[Optimizer], before: Hook, after: Hook, ended: Callable[[Any], None]):
        # weak: the optimizers hold us by their hooks, and what is pending must outlive them
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._ended = ended
        self._handles = []
        for optimizer in optimizers:
            self._handles += [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
            protected.add(optimizer)

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
