"""Hugging Face: a callback that protects what a model has learned in earlier calls of `Trainer.train`.

It also works with a `PeftModel`, whose trainable parameters are protected. A loop written with Accelerate needs no
callback: `accelerator.register_for_checkpointing(memory)` saves a memory with everything else.
"""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ogd.integrations.guard import Guard
from ogd.integrations.past_sets import PastSets
from ogd.memory import ExampleMemory, Memory, load
from ogd.memory.saving import read, write

FILE = "ogd.safetensors"  # in each checkpoint's folder, and in the output folder when training has ended
IGNORED = -100  # Hugging Face's label for a token that does not count


class OGDCallback(TrainerCallback):
    """Protects remembered tasks during `train`, and remembers the training data of each `train` at its end as a task.

    Each checkpoint's folder gets a file `ogd.safetensors` with the memory; `resume_from_checkpoint` finds it there.
    Two examples are tried before training begins, so that data or a model that cannot be remembered cost no time.
    At the end of training the memory, which now holds this task too, is written into the output folder, unless
    `save_strategy` is "no"; `OGDCallback.load(folder, model)` reads it in another process.

    Examples:
        >>> import tempfile, torch
        >>> from transformers import BertConfig, BertForSequenceClassification, Trainer
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))
        >>> tasks = [[{"input_ids": torch.tensor([i, t, 3]), "labels": i % 2} for i in range(6)] for t in range(2)]
        >>> ogd = OGDCallback(per_task=2)
        >>> for task in tasks:
        ...     out = tempfile.mkdtemp()
        ...     args = TrainingArguments(out, num_train_epochs=1, use_cpu=True, report_to="none", disable_tqdm=True)
        ...     _ = Trainer(model, args, train_dataset=task, callbacks=[ogd]).train()
        {...}
        {...}
        >>> ogd.memory.task_sizes
        (2, 2)

    Args:
        memory: a memory of the model in training; or `ogd.ExampleMemory` or `ogd.GradientMemory`, to make one when the
            first `train` begins.
        remember: whether the training data are remembered at the end of `train`. False: call
            `callback.memory.remember` yourself.
        options: options of the memory to make, and of its `protect` (`every`, …). If the labels are tokens, `outputs`
            of a `GradientMemory` must be a function, such as `next_tokens`.
    """

    def __init__(self, memory: Memory | type[Memory] = ExampleMemory, *, remember: bool = True, **options: Any):
        self.guard = Guard(memory, options)
        self.remember = remember
        self._folder: Path | None = None
        self._past: PastSets | None = None

    @property
    def memory(self) -> Memory | None:
        """The memory; None before the first `train` begins."""
        return self.guard.memory

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module, **options: Any) -> Self:
        """Return a callback with the memory in an output folder, or in the folder of a checkpoint.

        Args:
            folder: the folder that holds `ogd.safetensors`.
            model: the model, with the weights of that time.
            options: options of the callback, such as `every`. For options of the memory, use `ogd.load`.
        """
        return cls(load(Path(folder) / FILE, model), **options)

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Set the folder of the next `train(resume_from_checkpoint=folder)`, if it is not in the output folder."""
        self._folder = Path(folder)

    def watch(self, trainer: Any, past: Mapping[str, Any]) -> None:
        """Log what this trainer forgets: its loss on data sets of the past, whenever it is evaluated.

        The sets are evaluated by the trainer itself when training begins, after each of its own evaluations, and when
        training ends. `eval_NAME_loss` is in its logs, and `eval_NAME_forgetting`, the rise of this loss since training
        began. Both may be `metric_for_best_model`. With an empty memory that stays empty (`remember=False`) the
        callback protects nothing, so that plain training can be watched too.

        Args:
            trainer: the Trainer, or SFTTrainer, that has this callback.
            past: data sets by name, each as an `eval_dataset` of the trainer. An SFTTrainer has tokenized its own: take
                `trainer.eval_dataset` of the earlier task.
        """
        self._past = PastSets(trainer, past)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Any,
        train_dataloader: DataLoader[Any] | None = None,
        **_: Any,
    ) -> None:
        memory = self.guard.memory_for(model)
        if self.remember and train_dataloader is not None:
            self.guard.try_data(model, train_dataloader)
        if state.global_step:
            memory.load_state_dict(self._saved(args, state.global_step))
        self.guard.begin(model, [optimizer])
        past = self._past_of(state)
        if past is not None and not past.is_measured():
            past.measure()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        metrics: dict[str, float],
        **_: Any,
    ) -> None:
        past = self._past_of(state)
        if past is not None:
            past.measure(metrics)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if control.should_save or control.should_evaluate:
            self.guard.settle()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.on_step_end(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.memory is not None:
            write_to(self.memory, Path(args.output_dir) / f"checkpoint-{state.global_step}", args.should_save)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        train_dataloader: DataLoader[Any],
        **_: Any,
    ) -> None:
        self.guard.stop()
        past = self._past_of(state)
        if past is not None and not past.is_measured():
            past.measure()
        memory = self.guard.memory_for(model)
        if self.remember:
            memory.remember(_without_end(train_dataloader, state.global_step * args.gradient_accumulation_steps))
        if args.save_strategy != "no":
            write_to(memory, Path(args.output_dir), args.should_save)

    def _past_of(self, state: TrainerState) -> PastSets | None:
        """Return the sets of the past, if they are those of the trainer in this state."""
        return None if self._past is None or self._past.trainer.state is not state else self._past

    def _saved(self, args: TrainingArguments, step: int) -> dict[str, Any]:
        """Return the state in the folder that training resumes from, which Trainer does not pass to callbacks."""
        given, self._folder = self._folder or args.resume_from_checkpoint, None
        folder = Path(given) if isinstance(given, str | Path) else Path(args.output_dir) / f"checkpoint-{step}"
        if not (folder / FILE).is_file():
            raise FileNotFoundError(
                f"training resumes from step {step}, but there is no memory {folder / FILE}: call "
                "callback.restore(folder) with the folder that you gave to train(resume_from_checkpoint=folder)"
            )
        return read(folder / FILE)


def write_to(memory: Memory, folder: Path, here: bool) -> None:
    """Write the memory into a folder, on one rank; every rank must call it, because a memory may be sharded."""
    stored = memory.state_dict()
    if here:
        folder.mkdir(parents=True, exist_ok=True)
        write(stored, folder / FILE)


class _Beginning(IterableDataset[Any]):
    """The first n examples of a stream."""

    def __init__(self, stream: IterableDataset[Any], n: int):
        self.stream, self.n = stream, n

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.stream), self.n)


def _without_end(loader: DataLoader[Any], steps: int) -> DataLoader[Any]:
    """Return a loader of a stream, which may be endless, as a loader of as many examples as these steps took."""
    stream, n = loader.dataset, loader.batch_size
    if n is None or not isinstance(stream, IterableDataset):
        return loader
    return DataLoader(_Beginning(stream, steps * n), n, collate_fn=loader.collate_fn)


def next_tokens(z: Tensor, y: Tensor | None) -> Tensor:
    """Return the mean log-probability of each sequence's next tokens, (B,), for `outputs=` of a causal model.

    Examples:
        >>> import torch
        >>> z, y = torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [0, 3, -100]])
        >>> next_tokens(z, y).exp()
        tensor([0.2500, 0.2500])
    """
    if y is None:
        raise ValueError(
            "next_tokens needs labels, one for each token, and the data have none: give dictionaries with the key "
            "'labels', or use ogd.ExampleMemory(model)"
        )
    z, y = z[:, :-1], y[:, 1:]  # position t predicts token t + 1
    counts = y != IGNORED
    f = z.log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # (B, T − 1)
    return (f * counts).sum(1) / counts.sum(1).clamp(min=1)
