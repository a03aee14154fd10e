"""ER: experience replay (Chaudhry et al., 2019, "On Tiny Episodic Memories in Continual Learning").

Some examples of every finished task are kept. Each step also takes a batch B' of them, and minimises

    L = cross-entropy(B) + cross-entropy(B'),

each averaged over its batch and each example under its own task's head. With `replay_every` = k, B' is taken at every
k-th step and its part of the loss counts k times, so that on average it weighs the same.
"""

from typing import Any

from torch import Tensor

from ogd.lab import catalogue
from ogd.lab.catalogue.methods import CHOOSE, IN_TOTAL, MERGE, PER_TASK, REPLAY_BATCH, REPLAY_EVERY
from ogd.lab.methods.buffer import Buffer, StoredBatch
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.method import Method
from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack, loss_gradient


class ER(Method):
    """Keep `per_task` examples of each task, or `in_total` of all; replay `replay_batch` every `replay_every` steps.

    Examples:
        >>> ER(per_task=100).replay_batch
        10
    """

    name = "er"
    outputs = False  # whether the logits of the examples are kept, too

    def __init__(
        self,
        per_task: int = PER_TASK.default,
        replay_batch: int = REPLAY_BATCH.default,
        replay_every: int = REPLAY_EVERY.default,
        in_total: int = IN_TOTAL.default,
        choose: str = CHOOSE.default,
        merge: int = MERGE.default,
    ) -> None:
        given = {"per_task": per_task, "replay_batch": replay_batch, "replay_every": replay_every}
        catalogue.METHODS["er"].check(**given, in_total=in_total, choose=choose, merge=merge)
        self.per_task, self.replay_batch = per_task, replay_batch
        self.replay_every, self.in_total, self.choose, self.merge = replay_every, in_total, choose, merge

    def begin(self, model: Stack, seed: int) -> None:
        self.buffer = self.make_buffer()

    def make_buffer(self) -> Buffer:
        """Return an empty buffer."""
        return Buffer(**self.buffer_options())

    def buffer_options(self) -> dict[str, Any]:
        limits = {"per_task": self.per_task, "in_total": self.in_total, "batch": self.replay_batch}
        return {**limits, "outputs": self.outputs, "choose": self.choose, "merge": self.merge}

    def end_task(self, finished: FinishedTask) -> None:
        self.buffer.add(finished)

    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        if not self.buffer or (step - self.buffer.began + 1) % self.replay_every:
            return gradient
        batch = self.buffer.draw(step)
        tape, z = model.passing(batch.x)
        delta = self.replayed(z, batch)
        if self.replay_every > 1:
            delta *= self.replay_every
        return self.join(gradient, model.backward(tape, delta))

    def join(self, gradient: Gradient, replay: Gradient) -> Gradient:
        """Return the gradient of both losses, given those of the two batches."""
        return gradient.plus(replay)

    def replayed(self, z: Tensor, batch: StoredBatch) -> Tensor:
        """Return the gradient of the loss on B' with respect to its logits z (R, B', C)."""
        return loss_gradient(z, batch.target, batch.head)
