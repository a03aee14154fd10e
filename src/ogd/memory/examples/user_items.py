"""Examples that are items of any data set, rehearsed by a loss of the user's own."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from ogd import defaults, seeds
from ogd.memory.data.items import Collate, draw_items
from ogd.memory.examples.example_kind import DrawnBatch, ExampleKind, NewTask, own_rows
from ogd.memory.examples.examples_state import items_from_state, items_state
from ogd.memory.examples.kept_items import Item, Items, gather_items
from ogd.memory.examples.prefetch import draw
from ogd.memory.examples.user_loss import CHUNK, Loss, UserLoss, by_collate
from ogd.memory.model.eval_mode import isolated_eval_mode
from ogd.memory.ranks.sharded_parameters import is_sharded


class UserItems(ExampleKind[Items, Tensor]):
    """Items with the functions `loss(model, batch)`, `collate(items)` and `outputs(model, batch)` of the user."""

    sampled = CHUNK

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        collate: Collate | None,
        outputs: Callable[[nn.Module, Any], Any] | None,
    ):
        super().__init__(model)
        self.user_loss = UserLoss(loss, collate, outputs)

    def empty(self) -> Items:
        return Items()

    def check_task(self, new: NewTask) -> None:
        if (new.choose, new.merge, new.classes, new.logits) != ("uniform", 1, None, None):
            raise ValueError("choose=, merge=, classes= and logits= are for pairs (x, y), and this memory has a loss=")

    def with_task(self, kept: Items, new: NewTask, params: Mapping[str, Tensor]) -> Items:
        items = self._with_task(kept, new)
        if len(items) == len(kept):
            raise ValueError("data is empty: there is no item to remember")
        return items

    def sample(self, new: NewTask, params: Mapping[str, Tensor]) -> Items:
        return self._with_task(Items(), new)

    def _with_task(self, kept: Items, new: NewTask) -> Items:
        with isolated_eval_mode(self.model), torch.no_grad():
            items = [Item.of(item) for item in draw_items(new.data, new.count, new.generator)]
            if new.shared:
                items = gather_items(items, new.count, new.generator)
            kept = kept.with_task(items, self.user_loss.collate_for(new.data))
            return self.user_loss.with_outputs(self.model, kept, len(kept.collates) - 1)

    def measured(self, kept: Items, params: Mapping[str, Tensor]) -> Items:
        with isolated_eval_mode(self.model), torch.no_grad():
            return self.user_loss.measured(self.model, kept, len(kept.collates) - 1, params)

    def check_weights(self, alpha: float, labels: bool) -> None:
        if self.user_loss.outputs is not None:
            return
        if not labels:
            raise ValueError("labels=False leaves the loss out, and the memory keeps no outputs: give it outputs= too")
        if alpha not in (0, defaults.REHEARSAL_ALPHA):
            raise ValueError("alpha= weighs outputs, and the memory keeps none: give it outputs=, or leave alpha= out")

    def parts(self, kept: Items, drawn: DrawnBatch) -> Sequence[Tensor]:
        rows = draw(drawn.seed, drawn.number, len(kept), drawn.size)
        if is_sharded(self.model):
            return by_collate(kept, rows)
        rows = own_rows(rows, drawn.shared)
        return [rows] if len(rows) else []

    def _loss(self, kept: Items, part: Tensor, drawn: DrawnBatch) -> Tensor:
        seed = seeds.number(drawn.seed, "loss", drawn.number, drawn.rank)
        return self.user_loss.remembered_loss(self.model, kept, part, drawn.alpha, drawn.labels, seed)

    def reference_losses(self, kept: Items, alpha: float, labels: bool) -> tuple[float, float]:
        return sum(item.loss for item in kept.items) / len(kept), math.inf  # that of a constant model is not known

    def change(self, kept: Items, rows: Tensor) -> tuple[float, float]:
        with isolated_eval_mode(self.model), torch.no_grad():
            return self.user_loss.change(self.model, kept, rows)

    def check_fits(self, kept: Items) -> None:
        for task in range(len(kept.collates)):
            try:
                self.change(kept, kept.rows_of(task)[-CHUNK:])
            except Exception as error:
                raise ValueError(
                    f"the memory belongs to another model: loss= or outputs= fails on a stored item ({error})"
                ) from error

    def state(self, kept: Items) -> dict[str, Any]:
        return items_state(kept)

    def from_state(self, stored: Mapping[str, Any]) -> Items:
        return items_from_state(stored, self.user_loss.collate_for(None))

    def options(self, kept: Items) -> dict[str, Any]:
        collates = [self.user_loss.collate] if self.user_loss.collate else kept.collates
        return {
            "loss": True,
            "outputs": self.user_loss.outputs is not None,
            "collate": any(collate is not default_collate for collate in collates),
        }
