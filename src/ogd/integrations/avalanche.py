"""Avalanche: a plugin that protects the experiences a strategy has been trained on."""

from collections.abc import Callable
from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.models import avalanche_forward
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ogd.integrations.guard import Guard
from ogd.memory import Memory


class OGDPlugin(SupervisedPlugin):
    """Protects what was remembered, and at the end of an experience remembers it: a task is one experience.

    The memory is part of Avalanche's checkpoints, which pickle the strategy: the plugin gives them its options and
    the memory's state, of plain values and tensors.

    Args:
        memory: an `ogd.Memory` of the strategy's model; None: one made when the first experience begins.
        every: how many steps are projected at once; see `Memory.protect`.
        remember: whether an experience is remembered at its end. False: call `plugin.memory.remember` yourself.
        options: those of `ogd.Memory`, for the memory to make.
    """

    def __init__(self, memory: Memory | None = None, *, every: int = 1, remember: bool = True, **options: Any):
        super().__init__()
        if memory is None:
            options.setdefault("logits", logits)
        self.guard = Guard(memory, every, options)
        self.remember = remember

    @property
    def memory(self) -> Memory | None:
        """The memory; None before the first experience begins."""
        return self.guard.memory

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.guard.begin(strategy.model, [strategy.optimizer])

    def before_eval(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.guard.settle()

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.guard.stop()
        if self.remember:
            data = strategy.experience.dataset.eval()  # without the augmentations of training
            self.guard.of(strategy.model).remember(pairs(data))


def logits(model: nn.Module, x: tuple[Tensor, Tensor]) -> Tensor:
    """The logits of a model that may want the task of each example."""
    z: Tensor = avalanche_forward(model, *x)
    return z


def pairs(dataset: Any) -> DataLoader[Any]:
    """A data set of triples (x, y, task) as a loader of pairs ((x, task), y)."""
    collate: Callable[[Any], Any] = dataset.collate_fn

    def pair(examples: Any) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x, y, task = collate(examples)
        return (x, task), y

    return DataLoader(dataset, 256, collate_fn=pair)
