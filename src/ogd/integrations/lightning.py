"""Lightning: a callback that protects what a model has learned in earlier calls of `Trainer.fit`."""

import os
from collections.abc import Mapping
from typing import Any, Self

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ogd.integrations.guard import Guard
from ogd.memory import ExampleMemory, Memory
from ogd.memory.loading import KINDS


class OGD(Callback):
    """Protects remembered tasks during `fit`, and remembers the training data of each `fit` at its end as a task.

    The memory is part of Lightning's checkpoints, under `callbacks`, and is restored with `ckpt_path=`. A checkpoint
    that is made during `fit` holds the earlier tasks. After `fit`, `trainer.save_checkpoint(path)` makes one that
    holds this task too, and `OGD.from_checkpoint(path)` reads the memory in another process.

    Examples:
        >>> from torch import nn
        >>> from torch.nn.functional import cross_entropy
        >>> class Net(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(4, 3)
        ...     def forward(self, x):
        ...         return self.net(x)
        ...     def training_step(self, batch):
        ...         x, y = batch
        ...         return cross_entropy(self(x), y)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> tasks = [torch.utils.data.TensorDataset(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)]
        >>> model, ogd = Net(), OGD(per_task=2)
        >>> for task in tasks:
        ...     quiet = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        ...     trainer = Trainer(max_epochs=1, callbacks=[ogd], enable_checkpointing=False, **quiet)
        ...     trainer.fit(model, torch.utils.data.DataLoader(task, batch_size=3))
        >>> ogd.memory.task_sizes
        (2, 2)

    Args:
        memory: a memory of the LightningModule or of a module in it; or `ogd.ExampleMemory` or `ogd.GradientMemory`,
            to make one for the LightningModule when the first `fit` begins; its logits are the result of `forward`.
        remember: whether the training data are remembered at the end of `fit`. False: call
            `callback.memory.remember` yourself, for example if a task needs `classes=` or other data.
        options: options of the memory to make, and of its `protect` (`every`, …).
    """

    def __init__(self, memory: Memory | type[Memory] = ExampleMemory, *, remember: bool = True, **options: Any):
        self.guard = Guard(memory, options)
        self.remember = remember
        self._done = False  # whether the task of this fit is remembered

    @property
    def memory(self) -> Memory | None:
        """The memory; None before the first `fit` begins."""
        return self.guard.memory

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Return a callback with the memory of one of Lightning's checkpoints, for a new `fit`.

        Args:
            path: the checkpoint.
            options: those of the callback. The class of the memory is that of the checkpoint.
        """
        states = torch.load(path, map_location="cpu", weights_only=True).get("callbacks", {})
        key = cls().state_key
        if not states.get(key, {}).get("memory"):
            raise ValueError(f"{os.fspath(path)}: holds no memory; its callbacks are {list(states)}")
        callback = cls(KINDS[states[key]["memory"]["kind"]], **options)
        callback.load_state_dict(states[key])
        return callback

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._done = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.guard.memory_for(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._done = False
        self.guard.begin(pl_module, trainer.optimizers)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.guard.settle()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.guard.stop()
        self._remember(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step:  # a fit that resumes at its end trains nothing and has no on_train_end
            self._remember(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.guard.fail()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.guard.stop()

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.guard.state_dict(), "done": self._done}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.guard.load_state_dict(state_dict["memory"])
        self._done = state_dict["done"]

    def _remember(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.remember and not self._done:
            self.guard.memory_for(pl_module).remember(trainer.train_dataloader)
            self._done = True
