"""The common part of all integrations: make a memory when its model is known, and protect while a task is trained."""

import inspect
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from ogd.memory import Memory, Protection


class Guard:
    """A memory, and its protections while a task is trained.

    Args:
        memory: a memory, or the class of the memory to make when the first task begins.
        options: options of `protect` (`every`, …), and of the memory to make.
    """

    def __init__(self, memory: Memory | type[Memory], options: Mapping[str, Any]):
        kind = memory if isinstance(memory, type) else type(memory)
        if not issubclass(kind, Memory) or inspect.isabstract(kind):
            found = memory.__name__ if isinstance(memory, type) else f"a {kind.__name__}"
            raise TypeError(f"memory must be an ExampleMemory or a GradientMemory, or one of the classes, not {found}")
        self.kind, self.memory = kind, None if isinstance(memory, type) else memory
        self.protect_options = {name: value for name, value in options.items() if name in _names(kind.protect)}
        self.options = {name: value for name, value in options.items() if name not in self.protect_options}
        if unknown := [name for name in self.options if name not in _names(kind.__init__)]:
            raise TypeError(f"{', '.join(unknown)}: not an option of {kind.__name__}, nor of its protect")
        if self.memory is not None and self.options:
            given = ", ".join(self.options)
            raise TypeError(f"{given}: a given memory has its own options; give either a memory or these options")
        self._stored: Mapping[str, Any] | None = None  # a state that was loaded before there was a model
        self._protections: list[Protection] = []

    def memory_for(self, model: nn.Module) -> Memory:
        """Return the memory of this model, restored if a state was loaded before."""
        memory = self.kind(model, **self.options) if self.memory is None else self.memory
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
        memory = self.memory_for(model)
        memory._settled_by_framework = True
        self._protections = [memory.protect(optimizer, **self.protect_options) for optimizer in optimizers]

    def try_data(self, model: nn.Module, loader: Any) -> None:
        """Raise now what `remember` would raise after training, as two examples of a DataLoader show it.

        A stream of data, which could not be read again, is not tried.
        """
        dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
        if dataset is None or collate is None or isinstance(dataset, IterableDataset):
            return
        with random_state():
            examples = [dataset[i] for i in range(min(len(dataset), 2))]
            refused = self.memory_for(model).explain(DataLoader(examples, 2, collate_fn=collate)).refused  # type: ignore[arg-type]
        if refused:
            raise ValueError(refused)

    def settle(self) -> None:
        """Project pending steps, before the weights are read."""
        if self.memory is not None:
            self.memory.settle()

    def stop(self) -> None:
        """End the protections that `begin` made."""
        for protection in self._protections:
            protection.unprotect()
        self._protections = []
        if self.memory is not None:
            self.memory._settled_by_framework = False

    def fail(self) -> None:
        """End the protections after an error; if the memory is sharded, when the next task begins on all ranks."""
        if not getattr(self.memory, "sharded", False):
            self.stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the memory's state, of plain values and tensors; empty if there is no memory yet."""
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
        """Return the state for frameworks that pickle their plugins: the memory's options and state, not the model."""
        options = self.options
        if self.memory is not None and not options:
            options = {name: getattr(self.memory, name) for name in _names(self.kind.__init__)}
        stored = self.state_dict() or None
        return {**vars(self), "memory": None, "options": options, "_stored": stored, "_protections": []}


@contextmanager
def random_state() -> Iterator[None]:
    """Restore the random states that data sets use."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def _names(method: Any) -> list[str]:
    """Return the names of a method's options: all arguments but the first, the model or the optimizer."""
    return list(inspect.signature(method).parameters)[2:]
