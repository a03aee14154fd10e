"""What all integrations share: a memory that is made when its model is known, and protects while a task is trained."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ogd.memory import Memory, Protection, Rehearsal
from ogd.memory.protection import protection as protecting

Every = protecting.Every | None
WAY = ("by", "batch", "alpha", "labels", "refresh")  # options of `Memory.protect`


class Guard:
    """A memory, and the protections of the task under way.

    Args:
        memory: one that exists, or None to make one when the first task begins.
        every: how many steps share a projection or a rehearsal; see `Memory.protect`.
        options: of `Memory.protect` (`by`, `batch`, `alpha`, …), and of the memory to make.
    """

    def __init__(self, memory: Memory | None, every: Every, options: Mapping[str, Any]):
        self.way = {"every": every, **{name: value for name, value in options.items() if name in WAY}}
        options = {name: value for name, value in options.items() if name not in WAY}
        if memory is not None and not isinstance(memory, Memory):
            raise TypeError(f"memory must be an ogd.Memory or None, not {type(memory).__name__}")
        if memory is not None and options:
            raise TypeError(f"{', '.join(options)}: a given memory has its own options; give either memory= or these")
        self.memory, self.options = memory, options
        self._stored: Mapping[str, Any] | None = None  # a state that came before there was a model
        self._protections: list[Protection | Rehearsal] = []

    def of(self, model: nn.Module) -> Memory:
        """The memory of this model, restored if a state was loaded before."""
        memory = Memory(model, **self.options) if self.memory is None else self.memory
        if all(module is not memory.model for module in model.modules()):
            raise ValueError(
                f"the memory belongs to another {type(memory.model).__name__}, not to the {type(model).__name__} in "
                "training: make a new callback or plugin for each model"
            )
        if self._stored is not None:
            memory.load_state_dict(self._stored)
            self._stored = None
        self.memory = memory
        return memory

    def begin(self, model: nn.Module, optimizers: Iterable[Any]) -> None:
        """Protect the model from these optimizers."""
        self.stop()
        memory = self.of(model)
        self._protections = [memory.protect(optimizer, **self.way) for optimizer in optimizers]

    def settle(self) -> None:
        """Project what is pending, before the weights are looked at."""
        if self.memory is not None:
            self.memory.settle()

    def stop(self) -> None:
        """End what `begin` began."""
        for protection in self._protections:
            protection.unprotect()
        self._protections = []

    def fail(self) -> None:
        """End it after an error; of a sharded memory when the next task begins, since other ranks may not take part."""
        if self.memory is None or not self.memory.sharded:
            self.stop()

    def state_dict(self) -> dict[str, Any]:
        """The memory's state, of plain values and tensors; empty where there is no memory yet."""
        if self._stored is not None:
            return dict(self._stored)
        return {} if self.memory is None else self.memory.state_dict()

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Restore a state, now or as soon as there is a model."""
        if not stored:
            return
        if self.memory is None:
            self._stored = stored
        else:
            self.memory.load_state_dict(stored)

    def __getstate__(self) -> dict[str, Any]:
        """For frameworks that pickle their plugins: the memory as its options and its state, without the model."""
        options, memory = self.options, self.memory
        if memory is not None and not options:
            names = [
                name
                for name in inspect.signature(Memory.__init__).parameters
                if hasattr(memory, name) and name != "model"
            ]
            options = {name: getattr(memory, name) for name in names}
            options |= {"params": memory.parameters.wanted, "statistics": memory.statistics.way}
        stored = self.state_dict() or None
        return {**vars(self), "memory": None, "options": options, "_stored": stored, "_protections": []}
