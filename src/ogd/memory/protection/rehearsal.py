"""Rehearsal through the optimizer's step hook: the gradient of the remembered loss is added to `.grad`.

    every k-th step:    p.grad += k ∇ (1/B) Σ ℓ(x_i)        B examples drawn from memory without replacement

It is added when the optimizer is about to step, so once per step however many backward passes came before, and after
gradients were clipped or unscaled.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ogd.memory.protection.hooked import Hooked, may_nest

Loss = Callable[[int], tuple[Tensor, int] | None]
Params = Sequence[Tensor]


class Rehearsal(Hooked):
    """Optimizers that rehearse; `loss` is the remembered loss of the last batch, per example.

    Args:
        remembered: a function of the batch size that draws examples and returns the sum of their losses and how many
            they are, None without any.
        protected: which of an optimizer's parameters get the gradient.
        summed: adds the gradients of several ranks, each of which has taken a part of the batch; None alone.
        since: steps since the last rehearsal, for each optimizer.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        every: int,
        batch: int,
        remembered: Loss,
        protected: Callable[[Params], Params],
        summed: Callable[[], Callable[..., list[Tensor]] | None],
        ended: Callable[["Rehearsal"], None],
        since: Sequence[int] = (),
    ):
        self.every, self.batch = every, batch
        self._remembered, self._protected, self._summed = remembered, protected, summed
        self.since = [0] * len(optimizers)
        self.since[: len(since)] = since
        super().__init__(optimizers, ended, follows=any(map(may_nest, optimizers)))

    def __repr__(self) -> str:
        return f"Rehearsal({self.held}, every={self.every}, batch={self.batch})"

    def forget(self) -> None:
        """Begin anew: what is remembered has changed."""
        self.stepped = False

    def _on_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for place, ref in enumerate(self._optimizers):  # noqa: B007 (used after the loop)
            if ref() is optimizer:
                break
        else:  # a wrapper that has taken over the hooks of the one inside, whose step is to come
            return None
        if not self.holds or (self._inside and self._within_a_step(optimizer)):
            return None
        first, due = not self.since[place], self.since[place] + 1 >= self.every
        if (first or due) and torch._C._current_graph_task_id() >= 0:
            raise RuntimeError(
                "rehearsal cannot run inside a backward pass, where this optimizer steps: step after it, or protect "
                'by="projection"'
            )
        if self._follows:
            self._inside.add(id(optimizer))
        self.stepped = True
        if not due:
            self.since[place] += 1
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._add(optimizer)
            self.since[place] = 0  # an exception before this leaves the rehearsal due
            return None

        def then_rehearsed() -> Any:  # a closure computes the gradients, inside the step
            result = closure()
            self._add(optimizer)
            self.since[place] = 0
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": then_rehearsed}
        return (args[0], then_rehearsed, *args[2:]), kwargs

    def _on_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_outermost(optimizer):
            self._inside.discard(id(optimizer))

    def _add(self, optimizer: Optimizer) -> None:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self._add(optimizer)
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        params = self._protected(held)
        drawn = self._remembered(self.batch)
        if drawn is None:
            return None
        loss, n = drawn
        if any(p.dtype is torch.float16 for p in params):  # the gradient of a sum might be too large for it
            loss, n = loss / n, 1
        found: Sequence[Tensor | None] = [None] * len(params)
        if loss.requires_grad and params:
            found = torch.autograd.grad(loss, params, allow_unused=True)
        loss, summed = loss.detach(), self._summed()
        if summed is not None:
            *found, loss = summed(*(_or_zero(g, p) for g, p in zip(found, params, strict=True)), loss)
        self.loss = float(loss) / n
        if not math.isfinite(self.loss):
            raise RuntimeError(
                "the remembered loss is not finite (NaN or infinite), so it was not added to the gradients: have the "
                "weights diverged, or are the inputs very large? Lower the learning rate, or alpha="
            )
        return _add_to_gradients(params, found, self.every * _scale_of(optimizer) / n)


@torch.no_grad()
def _add_to_gradients(params: Params, gradients: Sequence[Tensor | None], weight: float) -> None:
    into, what = [], []
    for p, g in zip(params, gradients, strict=True):
        if g is None:
            continue
        old = p.grad
        if old is None:
            p.grad = g.mul(weight)
        elif old.layout is not torch.strided:  # and stays so: some optimizers take nothing else
            p.grad = old + (g if g.is_sparse else g.to_sparse(old.sparse_dim())) * weight
        else:
            into.append(old)
            what.append(g if g.layout is torch.strided else g.to_dense())
    if into:
        torch._foreach_add_(into, what, alpha=weight)


def _or_zero(g: Tensor | None, p: Tensor) -> Tensor:
    return torch.zeros_like(p) if g is None else g.to_dense()


def _scale_of(optimizer: Optimizer) -> float:
    """What GradScaler has multiplied the gradients by, where the optimizer itself divides by it (fused ones)."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)
