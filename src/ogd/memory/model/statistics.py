"""Which modules' buffers are kept: those that took part in a remembered output, from then on.

A remembered output is f(x; w, b): weights w, and buffers b such as BatchNorm's running statistics. Projection keeps f
to first order in w; nothing would keep it while b moves. How a module's buffers are kept is in `holding.py`.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ogd.memory.model.holding import Hold

WAYS = ("keep", "move")


class Statistics:
    """The buffers of a model's modules that took part in remembered outputs: kept, or let move with a warning."""

    def __init__(self, model: nn.Module, way: str):
        if way not in WAYS:
            raise ValueError(f'statistics must be "keep" or "move", not {way!r}')
        self.model, self.way = model, way
        self.names: set[str] = set()  # of the modules
        self._holds: dict[str, Hold] = {}
        self._said = False

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Inside, note which modules with buffers are called."""
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

    def hold(self) -> None:
        """Keep the buffers of the named modules from now on, also of a module that replaced one of them."""
        modules = dict(self.model.named_modules())
        holds = dict(self._holds)
        for name in self.names & modules.keys():
            held = holds.get(name)
            if held is None or held.module() is not modules[name]:
                holds[name] = Hold(name, modules[name], self)
        new, self._holds = holds != self._holds, holds  # a hold works as long as it is one of these
        if new and "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # code compiled before does not call hooks that came later

    def release(self) -> None:
        """Let them move again: a hold that is not in use is removed when its module is called."""
        self._holds = {}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """The modules of a saved memory. One that does not say keeps all that the model has."""
        names = stored.get("statistics", [name for name, module in self.model.named_modules() if module._buffers])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("the state is malformed: statistics must be a list of names of modules")
        self.release()
        self.names = set(names)

    def warn(self, message: str) -> None:
        """Say once what the user would not expect."""
        if not self._said:
            self._said = True
            warnings.warn(message, stacklevel=6)

    def __getstate__(self) -> dict[str, Any]:
        """A copy holds nothing before its memory protects or remembers."""
        return {**vars(self), "_holds": {}}
