"""DER++: dark experience replay (Buzzega et al., 2020).

Some examples of every finished task are kept with the logits z* that the model had for them then. Each step also takes
a batch B' of them, and minimises

    L = cross-entropy(B) + cross-entropy(B') + α · mean_{B'} (1/C) Σ_c (z_c − z*_c)²,

the last sum over the C logits of each example's own head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd import catalogue
from ogd.catalogue.methods import ALPHA, PER_TASK, REPLAY_BATCH
from ogd.methods.buffer import Buffer, Stored
from ogd.methods.finished import Finished
from ogd.methods.method import Method
from ogd.methods.per_run import of_stack, per_run
from ogd.models.gradient import Gradient
from ogd.models.loss import loss_gradient
from ogd.models.stack import Stack


class DER(Method):
    """Keep `per_task` examples of each task with their logits; replay `replay_batch` of them per step.

    α is one number, or one per run.

    Examples:
        >>> DER(alpha=0.1).per_task
        200
    """

    name = "der"

    def __init__(
        self,
        per_task: int = PER_TASK.default,
        replay_batch: int = REPLAY_BATCH.default,
        alpha: float | Sequence[float] = ALPHA.default,
    ) -> None:
        catalogue.check_options("der", per_task=per_task, replay_batch=replay_batch)
        self.per_task, self.replay_batch = per_task, replay_batch
        self.alpha = per_run(ALPHA, alpha)

    def __repr__(self) -> str:
        return f"der (α = {', '.join(f'{a:g}' for a in self.alpha)})"

    def begin(self, model: Stack, seed: int) -> None:
        self._alpha = of_stack(ALPHA, self.alpha, model)[:, None, None]
        self.buffer = Buffer(self.per_task, self.replay_batch, outputs=True)

    def end_task(self, finished: Finished) -> None:
        self.buffer.add(finished)

    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        if not self.buffer:
            return gradient
        batch = self.buffer.draw(step)
        tape, z = model.passing(batch.x)
        delta = loss_gradient(z, batch.target, batch.head).add_(self._alpha * distance_gradient(z, batch))
        return gradient.plus(model.backward(tape, delta))


def distance_gradient(z: Tensor, batch: Stored) -> Tensor:
    """Return the gradient of mean_B (1/C) Σ_c (z_c − z*_c)² with respect to z: 2 (z − z*) / (B C) inside the head."""
    assert batch.z is not None
    assert batch.head is not None
    inside = batch.head.isfinite()
    C = inside.sum(-1, keepdim=True).to(z.dtype)
    return torch.where(inside, z - batch.z, 0) * (2 / (z.shape[1] * C))
