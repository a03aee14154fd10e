"""DER++: dark experience replay (Buzzega et al., 2020).

Some examples of every finished task are kept with the logits z* that the model had for them then. Each step also takes
a batch B' of them, and minimises

    L = cross-entropy(B) + cross-entropy(B') + α · mean_{B'} (1/C) Σ_c (z_c − z*_c)²,

the last sum over the C logits of each example's own head. `replay_every` is ER's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd.lab.catalogue.methods import ALPHA, CHOOSE, IN_TOTAL, MERGE, PER_TASK, REPLAY_BATCH, REPLAY_EVERY
from ogd.lab.methods.buffer import StoredBatch
from ogd.lab.methods.er import ER
from ogd.lab.methods.method import per_run, stack_values
from ogd.lab.models.stack import Stack


class DER(ER):
    """ER that keeps the logits of its examples, too, and stays near them.

    α is one number, or one per run.

    Examples:
        >>> DER(alpha=0.1).per_task
        200
    """

    name = "der"
    outputs = True

    def __init__(
        self,
        per_task: int = PER_TASK.default,
        replay_batch: int = REPLAY_BATCH.default,
        alpha: float | Sequence[float] = ALPHA.default,
        replay_every: int = REPLAY_EVERY.default,
        in_total: int = IN_TOTAL.default,
        choose: str = CHOOSE.default,
        merge: int = MERGE.default,
    ) -> None:
        super().__init__(per_task, replay_batch, replay_every, in_total, choose, merge)
        self.alpha = per_run(ALPHA, alpha)

    def __repr__(self) -> str:
        return f"der (α = {', '.join(f'{a:g}' for a in self.alpha)})"

    def begin(self, model: Stack, seed: int) -> None:
        self._alpha = stack_values(ALPHA, self.alpha, model)[:, None, None]
        super().begin(model, seed)

    def replayed(self, z: Tensor, batch: StoredBatch) -> Tensor:
        return super().replayed(z, batch).add_(self._alpha * distance_gradient(z, batch))


def distance_gradient(z: Tensor, batch: StoredBatch) -> Tensor:
    """Return the gradient of mean_B (1/C) Σ_c (z_c − z*_c)² with respect to z: 2 (z − z*) / (B C) inside the head."""
    assert batch.z is not None
    assert batch.head is not None
    inside = batch.head.isfinite()
    C = inside.sum(-1, keepdim=True).to(z.dtype)
    return torch.where(inside, z - batch.z, 0) * (2 / (z.shape[1] * C))
