"""ER: experience replay (Chaudhry et al., 2019, "On Tiny Episodic Memories in Continual Learning").

Some examples of every finished task are kept. Each step also takes a batch B' of them, and minimises

    L = cross-entropy(B) + cross-entropy(B'),

each averaged over its batch and each example under its own task's head.
"""

from ogd import catalogue
from ogd.catalogue.methods import PER_TASK, REPLAY_BATCH
from ogd.methods.buffer import Buffer
from ogd.methods.finished import Finished
from ogd.methods.method import Method
from ogd.models.gradient import Gradient
from ogd.models.stack import Stack


class ER(Method):
    """Keep `per_task` examples of each task; replay `replay_batch` of them per step.

    Examples:
        >>> ER(per_task=100).replay_batch
        10
    """

    name = "er"

    def __init__(self, per_task: int = PER_TASK.default, replay_batch: int = REPLAY_BATCH.default) -> None:
        catalogue.check_options("er", per_task=per_task, replay_batch=replay_batch)
        self.per_task, self.replay_batch = per_task, replay_batch

    def begin(self, model: Stack, seed: int) -> None:
        self.buffer = Buffer(self.per_task, self.replay_batch)

    def end_task(self, finished: Finished) -> None:
        self.buffer.add(finished)

    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        if not self.buffer:
            return gradient
        return gradient.plus(model.gradient(self.buffer.draw(step)))
