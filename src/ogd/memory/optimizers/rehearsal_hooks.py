"""Protect by rehearsal: add the gradient of the remembered loss to `.grad`.

    every k-th step:    p.grad += k ∇ (1/B) Σ ℓ(x_i)        B examples drawn from memory without replacement

It is added just before the optimizer steps: after gradients were clipped or unscaled, and once per step, however many
backward passes came before.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ogd.memory.optimizers.step_hooks import ProtectingMemory, Protection, may_nest
from ogd.memory.ranks.collective import sum_over_ranks

Params = Sequence[Tensor]


class RehearsingMemory(ProtectingMemory, Protocol):
    """A memory as a rehearsal needs it."""

    @property
    def _shared(self) -> bool:
        """Whether several ranks share each batch."""

    def _loss_of_batch(self, batch_size: int, alpha: float, labels: bool) -> tuple[Tensor, int] | None:
        """Return the summed loss of drawn examples on this rank, and their number on all ranks; None if empty."""

    def _protected_among(self, params: Params) -> Params:
        """Return the protected parameters among an optimizer's parameters."""


class Rehearsal(Protection):
    """Optimizers under protection by rehearsal; `loss` is the remembered loss of the last batch, per example.

    Args:
        memory: the memory to rehearse.
        optimizers: the optimizers that step.
        every: how many steps share a rehearsal.
        batch_size: how many examples are rehearsed at a time.
        alpha: the weight of the outputs' squared change.
        labels: whether the labels are rehearsed too.
        since: steps since the last rehearsal, for each optimizer.
    """

    _memory: RehearsingMemory

    def __init__(
        self,
        memory: RehearsingMemory,
        optimizers: Sequence[Optimizer],
        every: int,
        batch_size: int,
        alpha: float,
        labels: bool,
        since: Sequence[int] = (),
    ):
        self.every, self.batch_size, self.alpha, self.labels = every, batch_size, alpha, labels
        self.loss: float | None = None
        self.since = [0] * len(optimizers)
        self.since[: len(since)] = since
        super().__init__(memory, optimizers, post_hook=any(map(may_nest, optimizers)))

    def __repr__(self) -> str:
        return f"Rehearsal({self._names}, every={self.every}, batch_size={self.batch_size})"

    def reset(self) -> None:
        """Note that no step was taken since the contents of the memory changed."""
        self.stepped = False

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for place, ref in enumerate(self._optimizers):  # noqa: B007 (used after the loop)
            if ref() is optimizer:
                break
        else:  # a wrapper that shares the hooks of its inner optimizer, whose step follows
            return None
        if not self.enabled or (self._inside and self._within_a_step(optimizer)):
            return None
        first, due = not self.since[place], self.since[place] + 1 >= self.every
        if (first or due) and torch._C._current_graph_task_id() >= 0:
            raise RuntimeError(
                "rehearsal cannot run inside a backward pass, where this optimizer steps: step after it, or use a "
                "GradientMemory"
            )
        if self._post_hook:
            self._inside.add(id(optimizer))
        self.stepped = True
        if not due:
            self.since[place] += 1
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add(optimizer)
            self.since[place] = 0  # after an exception the rehearsal is still due
            return None

        def closure_with_rehearsal() -> Any:  # a closure computes the gradients inside the step
            result = closure()
            self._add(optimizer)
            self.since[place] = 0
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure_with_rehearsal}
        return (args[0], closure_with_rehearsal, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_outermost(optimizer):
            self._inside.discard(id(optimizer))

    def _add(self, optimizer: Optimizer) -> None:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self._add(optimizer)
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        params = self._memory._protected_among(held)
        drawn = self._memory._loss_of_batch(self.batch_size, self.alpha, self.labels)
        if drawn is None:
            return None
        loss, n = drawn
        if any(p.dtype is torch.float16 for p in params):  # the gradient of a sum may overflow
            loss, n = loss / n, 1
        found: Sequence[Tensor | None] = [None] * len(params)
        if loss.requires_grad and params:
            found = torch.autograd.grad(loss, params, allow_unused=True)
        loss = loss.detach()
        if self._memory._shared:
            *found, loss = sum_over_ranks(*(_or_zero(g, p) for g, p in zip(found, params, strict=True)), loss)
        self.loss = float(loss) / n
        if not math.isfinite(self.loss):
            raise RuntimeError(
                "the remembered loss is not finite (NaN or infinite), so it was not added to the gradients: have the "
                "weights diverged, or are the inputs very large? Lower the learning rate, or alpha="
            )
        return _add_to_gradients(params, found, self.every * _scale_of(optimizer) / n)


@torch.no_grad()
def _add_to_gradients(params: Params, gradients: Sequence[Tensor | None], weight: float) -> None:
    targets, additions = [], []
    for p, g in zip(params, gradients, strict=True):
        if g is None:
            continue
        old = p.grad
        if old is None:
            p.grad = g.mul(weight)
        elif old.layout is not torch.strided:  # stays sparse: some optimizers accept nothing else
            p.grad = old + (g if g.is_sparse else g.to_sparse(old.sparse_dim())) * weight
        else:
            targets.append(old)
            additions.append(g if g.layout is torch.strided else g.to_dense())
    if targets:
        torch._foreach_add_(targets, additions, alpha=weight)


def _or_zero(g: Tensor | None, p: Tensor) -> Tensor:
    return torch.zeros_like(p) if g is None else g.to_dense()


def _scale_of(optimizer: Optimizer) -> float:
    """Return GradScaler's factor if the optimizer itself divides by it, as fused optimizers do; else 1."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)
