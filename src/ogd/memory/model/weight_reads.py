"""Notice when a model is evaluated, saved or loaded, so that pending steps are projected before.

Between two projections the weights are where the optimizer put them. A pass evaluates if gradients are disabled, or if
the model is in evaluation mode and was trained in training mode. From a training pass to its step the weights must not
change, because the backward pass needs them as they were.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn


class ReadMemory(Protocol):
    """A memory as these hooks need it."""

    def _before_reading(self, event: str) -> None:
        """Project pending steps, or warn that it cannot be done now."""


class WeightReads:
    """The passes of a model since its last step.

    Attributes:
        called: whether the model was called since this was last set to False.
        in_training_pass: whether a training pass was not followed by a step yet.
        trains: whether the model was in training mode at the last step.
    """

    def __init__(self) -> None:
        self.called = self.in_training_pass = False
        self.trains = True
        self._entries: list[nn.Module] = []  # modules that are called first where the model itself is not called
        self._handles: list[Any] = []

    @contextmanager
    def entry(self, model: nn.Module) -> Iterator[None]:
        """Find out which module is called first inside the block: the model, or a part of it such as a common body."""
        first: list[nn.Module] = []
        handles = [
            module.register_forward_pre_hook(lambda module, _: None if first else first.append(module))
            for module in model.modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if first and first[0] is not model and all(module is not first[0] for module in self._entries):
            self._entries = [*self._entries, first[0]]

    def watch(self, model: nn.Module, memory: ReadMemory) -> None:
        """Call `memory._before_reading` before the model is evaluated, saved or loaded, from now on."""
        self.release()
        for module in (model, *self._entries):
            hook = _Hook(self, module, memory)
            hook.handles = [module.register_forward_pre_hook(hook, prepend=True)]
            if module is model:
                hook.handles += [
                    model.register_state_dict_pre_hook(hook.before_saving),
                    model.register_load_state_dict_pre_hook(hook.before_loading),
                ]
            self._handles += hook.handles

    def release(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.in_training_pass = [], False

    @property
    def watching(self) -> bool:
        return bool(self._handles)

    def end_step(self, training: bool) -> None:
        """Note that an optimizer has stepped, with the model in this mode."""
        self.in_training_pass, self.trains = False, training

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which watches no model."""
        return {**vars(self), "_handles": []}


class _Hook:
    """A hook that works only in its own module: in copies and pickles of the module it does nothing."""

    def __init__(
        self, reads: WeightReads | None = None, model: nn.Module | None = None, memory: ReadMemory | None = None
    ):
        self.reads = reads
        self.model = None if model is None else weakref.ref(model)
        self.memory = None if memory is None else weakref.ref(memory)
        self.handles: list[Any] = []

    def __call__(self, model: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or self.reads is None or self.model is None or self.model() is not model:
            return
        reads = self.reads
        reads.called = True
        if torch.is_grad_enabled() and (model.training or not reads.trains):
            reads.in_training_pass = True
        else:
            self._read("evaluated")

    def before_saving(self, model: nn.Module, *_: Any) -> None:
        if self.model is not None and self.model() is model:
            self._read("saved")

    def before_loading(self, model: nn.Module, *_: Any) -> None:
        if self.model is not None and self.model() is model:
            self._read("loaded")

    def _read(self, event: str) -> None:
        memory = None if self.memory is None else self.memory()
        if memory is not None:
            memory._before_reading(event)
            return
        for handle in self.handles:  # the memory is gone
            handle.remove()

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()
