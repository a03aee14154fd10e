"""A-GEM: Averaged Gradient Episodic Memory (Chaudhry et al., 2019).

Some examples of every finished task are kept. In each step a batch of them gives a reference gradient g_ref, and

    g̃ = g − min(g·g_ref, 0) / (g_ref·g_ref)  g_ref

so that the loss on the memory does not grow to first order.
"""

import torch

from ogd.lab import catalogue
from ogd.lab.catalogue.methods import IN_TOTAL, PER_TASK, REFERENCE_BATCH
from ogd.lab.methods.buffer import Buffer
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.method import Method
from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack


class AGEM(Method):
    """Keep `per_task` examples of each task, or `in_total` of all; draw `reference_batch` of them per step.

    Examples:
        >>> AGEM(per_task=100).per_task
        100
    """

    name = "agem"

    def __init__(
        self,
        per_task: int = PER_TASK.default,
        reference_batch: int = REFERENCE_BATCH.default,
        in_total: int = IN_TOTAL.default,
    ) -> None:
        catalogue.METHODS["agem"].check(per_task=per_task, reference_batch=reference_batch, in_total=in_total)
        self.per_task, self.reference_batch, self.in_total = per_task, reference_batch, in_total

    def begin(self, model: Stack, seed: int) -> None:
        self.buffer = Buffer(self.per_task, self.reference_batch, in_total=self.in_total)

    def end_task(self, finished: FinishedTask) -> None:
        self.buffer.add(finished)

    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        if not self.buffer:
            return gradient
        reference = model.gradient(self.buffer.draw(step))
        product = gradient.dot(reference)  # (R,)
        c = -product / reference.dot(reference)
        # always applied, so that a run has the same bits whichever runs train with it
        return gradient.plus(reference, torch.where(product < 0, c, 0))  # a zero reference gives 0/0
