"""Avalanche: a plugin that protects the experiences a strategy has been trained on."""

from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.models.utils import is_multi_task_module
from torch.utils.data import DataLoader

from ogd.integrations.guard import Guard
from ogd.memory import ExampleMemory, Memory


class OGDPlugin(SupervisedPlugin):
    """Protects remembered experiences during training, and remembers each experience at its end as a task.

    The memory is part of Avalanche's checkpoints, which pickle the strategy: the plugin adds its options and the
    memory's state, of plain values and tensors.

    Args:
        memory: a memory of the strategy's model; or `ogd.ExampleMemory` or `ogd.GradientMemory`, to make one when the
            first experience begins.
        remember: whether an experience is remembered at its end. False: call `plugin.memory.remember` yourself.
        options: options of the memory to make, and of its `protect` (`every`, …).
    """

    def __init__(self, memory: Memory | type[Memory] = ExampleMemory, *, remember: bool = True, **options: Any):
        super().__init__()
        self.guard = Guard(memory, options)
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
            self.guard.memory_for(strategy.model).remember(pairs(data, is_multi_task_module(strategy.model)))


def pairs(dataset: Any, with_task: bool) -> DataLoader[Any]:
    """Return a loader of pairs for triples (x, y, task): (x, y), or ((x, task), y) for a model of several heads."""

    def pair(examples: Any) -> tuple[Any, Any]:
        x, y, task = dataset.collate_fn(examples)
        return (x, task) if with_task else x, y

    return DataLoader(dataset, 256, collate_fn=pair)
