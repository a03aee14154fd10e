"""Freeze BatchNorm's running statistics and other buffers from the first remembered task on.

A remembered output is f(x; w, b), with weights w and buffers b. To protect w is useless while b changes. The buffers of
a module are frozen if the module took part in a remembered output; `buffer_hooks.py` freezes the buffers of one module.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ogd.memory.model.buffer_hooks import BufferHooks


class RunningStatistics:
    """The buffers of the modules that took part in remembered outputs: frozen, or free to change with a warning."""

    def __init__(self, model: nn.Module, frozen: bool):
        self.model, self.frozen = model, frozen
        self.names: set[str] = set()  # of the modules
        self._hooks: dict[str, BufferHooks] = {}
        self._warned = False

    @contextmanager
    def called_modules(self) -> Iterator[set[str]]:
        """Collect the names of the modules with buffers that are called inside the block."""
        called: set[str] = set()
        handles = []
        try:
            for name, module in self.model.named_modules():
                if any(b is not None for b in module._buffers.values()):
                    handles.append(module.register_forward_pre_hook(lambda *_, name=name: called.add(name)))
            yield called
        finally:
            for handle in handles:
                handle.remove()

    def freeze(self) -> None:
        """Freeze the buffers of the named modules from now on, also of a module that replaced one of them."""
        modules = dict(self.model.named_modules())
        hooks = dict(self._hooks)
        for name in self.names & modules.keys():
            old = hooks.get(name)
            if old is None or old.module() is not modules[name]:
                hooks[name] = BufferHooks(name, modules[name], self)
        new, self._hooks = hooks != self._hooks, hooks  # hooks work only while they are in this dictionary
        if new and "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # code that is compiled already does not call new hooks

    def release(self) -> None:
        """Let the buffers change again; hooks out of use are removed when their module is called."""
        self._hooks = {}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Read the names of modules from a saved state; without them, take all modules that have buffers."""
        names = stored.get("buffers", [name for name, module in self.model.named_modules() if module._buffers])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("the state is malformed: buffers must be a list of names of modules")
        self.release()
        self.names = set(names)

    def warn(self, message: str) -> None:
        """Warn, but only the first time."""
        if not self._warned:
            self._warned = True
            warnings.warn(message, stacklevel=6)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which freezes nothing before its memory protects or remembers."""
        return {**vars(self), "_hooks": {}}
