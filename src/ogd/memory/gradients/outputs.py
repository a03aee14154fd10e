"""The outputs whose gradients are stored: the true logit (GTL), the mean logit (AVE), all logits (ALL), or your own."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ogd.memory.data.calling import Logits, ScoredModel
from ogd.memory.data.labels import flat_labels
from ogd.memory.data.language_models import with_decoder_inputs

Outputs = Literal["true", "mean", "all"] | Callable[[Tensor, Any], Tensor]


class ChosenOutputs(ScoredModel):
    """The model with the choice of outputs on top: (x, y) ↦ f (B, k), one column per gradient."""

    def __init__(
        self,
        model: nn.Module,
        outputs: Outputs,
        logits: Logits | None = None,
        classes: Sequence[int] | None = None,
    ):
        super().__init__(model, logits, classes)
        self.outputs = outputs
        self.slow: dict[str, str] = {}  # parameters that were differentiated example by example, and why

    def forward(self, x: Any, y: Any) -> Tensor:
        return self.choose(self.scores(x), y)

    def choose(self, f: Tensor, y: Any) -> Tensor:
        if callable(self.outputs):
            f = self.outputs(f, y)
            if not isinstance(f, Tensor):
                raise TypeError(f"outputs returned {type(f).__name__}, but must be a function (z, y) → tensor")
            return f.unsqueeze(1) if f.ndim == 1 else f
        if self.outputs == "true":
            return f.gather(1, flat_labels(y).long().unsqueeze(1))
        f = f.unsqueeze(1) if f.ndim == 1 else f  # (B,): one output per example
        f = f if self.classes is None else f[:, self.classes]
        return f.mean(1, keepdim=True) if self.outputs == "mean" else f

    def check(self, f: Tensor, y: Any) -> None:
        """Raise a ValueError unless the scores f (B, C) have the outputs that y and the classes choose."""
        if callable(self.outputs):
            return
        if f.ndim != 2 and (f.ndim != 1 or self.outputs == "true"):
            raise ValueError(
                f"the logits have shape {tuple(f.shape)}, not (batch, classes), and a direction for each of them would "
                "be too many: use ogd.ExampleMemory(model), which keeps outputs of any shape, or pass outputs=, a "
                "function (z, y) → (B,)"
            )
        if self.outputs == "true" and len(f) != len(y):
            raise ValueError(f"the model gives {len(f)} rows of logits for {len(y)} examples: pass logits=, a function")
        C = f.shape[1] if f.ndim == 2 else 1
        largest = max([*(self.classes or []), *([int(y.max())] if self.outputs == "true" else [])], default=0)
        if largest >= C:
            remedy = ': for one logit use GradientMemory(model, outputs="all")' if C == 1 and not self.classes else ""
            raise ValueError(f"the model has {C} logits: a label or class of {largest} is out of range{remedy}")


def check_inputs(chosen: ChosenOutputs, x: Any, y: Any) -> None:
    """Raise a ValueError if x lacks the decoder's inputs, which an encoder-decoder makes of its labels."""
    if chosen.logits is None and with_decoder_inputs(chosen.model, x, y) is not x:
        raise ValueError(
            f"{type(chosen.model).__name__} is an encoder-decoder, whose decoder reads the labels: use "
            "ogd.ExampleMemory(model), which makes its inputs, or give decoder_input_ids with the batches"
        )


def check_labels(y: Any, outputs: Outputs, classes: Sequence[int] | None) -> None:
    """Raise a ValueError unless there are labels among `classes`, if `outputs` is "true"."""
    if outputs != "true":
        return
    y = flat_labels(y)
    if not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
        what = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        if isinstance(y, Tensor) and y.ndim > 1 and not y.is_floating_point():
            raise ValueError(
                f'outputs="true", the default, needs a label for each example, and these are {what}: pass one-hot '
                "labels as y.argmax(-1); for labels of tokens or pixels use ogd.ExampleMemory(model)"
            )
        raise ValueError(
            f'outputs="true", the default, needs a label for each example, integers of shape (B,), not {what}: pass '
            "one-hot labels as y.argmax(-1) and numbers such as 2.0 as y.long(); for a regression, one logit, several "
            'classes per example or no labels use GradientMemory(model, outputs="all")'
        )
    if y.numel() and int(y.min()) < 0:
        raise ValueError(f"labels must not be negative: found {int(y.min())}")
    if classes is not None and (strange := sorted(set(y.tolist()) - set(classes))):
        raise ValueError(f"labels {strange} are not among classes={list(classes)}")
