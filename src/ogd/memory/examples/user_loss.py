"""Compute the remembered loss of items by the user's own loss function.

    ℓ = loss(model, batch) + α mean_c (z_c − z*_c)²         z*: the remembered outputs, if the user names any

Items are put into batches by the user's collate function. The loss is computed in training mode, because some models
(torchvision's detectors) return losses in no other, but without what makes training random or changes the model:
normalisations and modules without submodules (dropout) are in evaluation mode. Outputs are computed in evaluation mode.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from ogd import seeds
from ogd.memory.data.batches import describe
from ogd.memory.data.items import Collate, collate_of
from ogd.memory.examples.kept_items import Item, Items
from ogd.memory.examples.loss import original_outputs
from ogd.memory.gradients.autograd_graph import depends_on
from ogd.memory.model.parameters import device_of, unwrap

Loss = Callable[[nn.Module, Any], Tensor]
CHUNK = 16  # items that are measured together
_HALF = (torch.bfloat16, torch.float16)


class UserLoss:
    """The functions `loss(model, batch)`, `collate(items)` and `outputs(model, batch)`; the last two may be None."""

    def __init__(self, loss: Loss, collate: Collate | None, outputs: Callable[[nn.Module, Any], Any] | None):
        self.loss, self.collate, self.outputs = loss, collate, outputs

    def collate_for(self, data: object) -> Collate:
        """Return the function that makes batches of the items of `data`."""
        return self.collate or collate_of(data) or default_collate

    def remembered_loss(
        self, model: nn.Module, items: Items, rows: Tensor, alpha: float, labels: bool, seed: int
    ) -> Tensor:
        """Return the sum of ℓ over some items; `labels=False` leaves the user's loss out."""
        total = torch.zeros((), device=device_of(model))
        for own in by_collate(items, rows):
            if labels:
                total = total + len(own) * self.mean_loss(model, items, own, seed)
            if alpha and self.outputs is not None:
                zs = self.outputs_of(model, items, own, seed)
                moved = [_change(z, item).square().mean() for z, item in zip(zs, items.at(own), strict=True)]
                total = total + alpha * torch.stack(moved).sum()
        return total

    def mean_loss(self, model: nn.Module, items: Items, rows: Tensor, seed: int) -> Tensor:
        """Return the user's loss of some items of one collate function."""
        with _seeded(model, seed):
            batch = _batch(model, items, rows)
            enter_loss_modes(model)
            try:
                loss = self.loss(model, batch)
            except Exception as error:
                error.add_note(
                    f"The memory called loss(model, batch) with a batch of {len(rows)} kept items: {describe(batch)}."
                )
                raise
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise ValueError(
                f"loss must return one number, the mean loss of the batch, not {describe(loss)}: add up what the model "
                "returns, for example sum(losses.values())"
            )
        return loss.float().reshape(()) if loss.dtype in _HALF else loss.reshape(())

    def outputs_of(self, model: nn.Module, items: Items, rows: Tensor, seed: int) -> list[Tensor]:
        """Return the outputs that the user names, one tensor for each item."""
        assert self.outputs is not None
        with _seeded(model, seed):
            batch = _batch(model, items, rows)
            model.eval()
            found = self.outputs(model, batch)
        zs = list(found) if isinstance(found, Tensor | list | tuple) else [found]
        if len(zs) != len(rows) or not all(isinstance(z, Tensor) and z.is_floating_point() for z in zs):
            raise ValueError(
                f"outputs must return a tensor (B, …) or a list of B tensors, here for B = {len(rows)} items, not "
                f"{describe(found)}"
            )
        return zs

    def measured(self, model: nn.Module, items: Items, task: int, params: Mapping[str, Tensor]) -> Items:
        """Return the items with the present losses of a task, or raise if they are unfit for rehearsal."""
        for first, (rows, seed) in enumerate(_chunks(items.rows_of(task))):
            with torch.set_grad_enabled(first == 0):
                loss = self.mean_loss(model, items, rows, seed)
            if not loss.isfinite():
                raise ValueError("nothing was stored: the loss of some items is not finite (NaN or infinite)")
            if first == 0 and params and not depends_on(loss, params):
                raise ValueError(
                    "nothing was stored: the loss does not depend on any protected parameter that is trainable, so "
                    "rehearsal could not protect it: look at loss= and params=, and for .detach() or no_grad"
                )
            value = float(loss.detach())
            items = items.with_items(rows, [replace(item, loss=value) for item in items.at(rows)])
        return items

    def with_outputs(self, model: nn.Module, items: Items, task: int) -> Items:
        """Return the items with the present outputs of a task, if the user names any."""
        for rows, seed in _chunks(items.rows_of(task)) if self.outputs is not None else ():
            zs = [z.detach().clone() for z in self.outputs_of(model, items, rows, seed)]
            if not all(bool(z.isfinite().all()) for z in zs):
                raise ValueError("nothing was stored: outputs= gives numbers that are not finite (NaN or infinite)")
            new = [replace(item, z=z) for item, z in zip(items.at(rows), zs, strict=True)]
            items = items.with_items(rows, new)
        return items

    def change(self, model: nn.Module, items: Items, rows: Tensor) -> tuple[float, float]:
        """Return the change of some items' mean loss, and the loss; of their outputs as root mean squares, if any."""
        moved, size, n = 0.0, 0.0, 0
        for own, seed in _chunks(rows):
            if self.outputs is None:
                before = sum(item.loss for item in items.at(own))
                now = sum(
                    len(some) * float(self.mean_loss(model, items, some, seed)) for some in by_collate(items, own)
                )
                moved, size, n = moved + now - before, size + before, n + len(own)
                continue
            for z, item in zip(self.outputs_of(model, items, own, seed), items.at(own), strict=True):
                change = _change(z, item)
                moved += float(change.double().square().sum())
                size += 0.0 if item.z is None else float(item.z.double().square().sum())
                n += change.numel()
        if self.outputs is None:
            return moved / max(n, 1), abs(size) / max(n, 1)
        return (moved / max(n, 1)) ** 0.5, (size / max(n, 1)) ** 0.5


def enter_loss_modes(model: nn.Module) -> None:
    """Put a model into training mode, but its normalisations and its modules without submodules into evaluation mode.

    Examples:
        >>> model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Dropout())
        >>> enter_loss_modes(model)
        >>> [module.training for module in model.modules()]
        [True, True, False, False, False]
    """
    model.train()
    root = unwrap(model)
    for module in root.modules():
        still = isinstance(module, _NormBase | nn.MultiheadAttention) or next(module.children(), None) is None
        if still and module is not root and module.training:
            module.eval()


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed the generators of torch, NumPy and Python in the block, because a loss may draw; then restore them."""
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the generator that users share)
    with torch.random.fork_rng(devices):
        try:
            for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in devices)):
                generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _batch(model: nn.Module, items: Items, rows: Tensor) -> Any:
    """Return some items of one collate function as a batch on the model's device."""
    device, collate = device_of(model), items.collates[int(items.task[rows[0]])]
    try:
        batch = collate([item.unpack() for item in items.at(rows)])
    except Exception as error:
        name = getattr(collate, "__name__", type(collate).__name__)
        error.add_note(
            f"The memory made a batch of {len(rows)} kept items by {name}. Give collate=, or a DataLoader with its "
            "collate_fn, if it takes another function."
        )
        raise
    return pytree.tree_map(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def by_collate(items: Items, rows: Tensor) -> list[Tensor]:
    """Divide rows by the collate functions of their tasks."""
    found: dict[int, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(id(items.collates[int(items.task[row])]), []).append(row)
    return [torch.tensor(own) for own in found.values()]


def _chunks(rows: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield the rows of a task in chunks with their seeds. Chunks count from the end: the last rows are a whole one."""
    for number, some in enumerate(rows.flip(0).split(CHUNK)):
        yield some.flip(0), seeds.number("reference", number)


def _change(z: Tensor, item: Item) -> Tensor:
    """Return the change of an item's outputs, those that it had when it was remembered."""
    before = z if item.z is None else item.z
    z = z.float() if z.dtype in _HALF else z
    return original_outputs(z[None], before[None])[0] - before.to(z)
