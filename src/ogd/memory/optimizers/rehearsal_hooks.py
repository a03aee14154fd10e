"""Protect by rehearsal: add the gradient of the remembered loss to `.grad`.

    every k-th step:    p.grad += s k ∇ (1/B) Σ ℓ(x_i)        B examples drawn from memory without replacement

It is added just before the optimizer steps: after gradients were clipped or unscaled, and once per step, however many
backward passes came before. The scale s ≤ 1 bounds what is added (`gradient_bound.py`).
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ogd.memory.optimizers.gradient_bound import (
    bounding_scale,
    descent_scale,
    inner_product,
    joint_norm,
    recent_norm,
    sgd_rate,
)
from ogd.memory.optimizers.step_hooks import ProtectingMemory, Protection, may_nest
from ogd.memory.ranks.collective import sum_over_ranks
from ogd.memory.ranks.sharded_parameters import inner_product_of_shards, is_shard, is_sharded, local, norm_of_shards

Params = Sequence[Tensor]
LOSSES = 10  # rehearsals between two looks at the remembered loss
RECENT = 0.9  # decay of its running mean
LOST = 0.75  # a model whose remembered loss reaches this share of a constant model's has lost what is remembered


class RehearsingMemory(ProtectingMemory, Protocol):
    """A memory as a rehearsal needs it."""

    model: nn.Module

    @property
    def _shared(self) -> bool:
        """Whether several ranks share each batch."""

    def _gradient_of_batch(
        self, params: Params, batch_size: int, alpha: float, labels: bool
    ) -> tuple[Sequence[Tensor | None], Tensor, int] | None:
        """Return the gradient and the loss of drawn examples on this rank, and what both are to be divided by.

        None if the memory is empty. The gradient of a sharded model is that of all ranks.
        """

    def _protected_among(self, params: Params) -> Params:
        """Return the protected parameters among an optimizer's parameters."""

    def _reference_losses(self, alpha: float, labels: bool) -> tuple[float, float]:
        """Return the remembered loss per example at the remembered outputs, and that of constant outputs."""


class Rehearsal(Protection):
    """Optimizers under protection by rehearsal.

    Attributes:
        loss: the remembered loss of the last batch, per example; None before the first rehearsal.
        rehearsals: the number of rehearsals so far.
        bounded: the number of rehearsals in which the bound reduced what was added.

    Args:
        memory: the memory to rehearse.
        optimizers: the optimizers that step.
        every: how many steps share a rehearsal.
        batch_size: how many examples are rehearsed at a time.
        alpha: the weight of the outputs' squared change.
        labels: whether the labels are rehearsed too.
        bound: the largest norm of the gradient with what is added, as a multiple of the largest recent norm of the
            optimizer's own gradients; None for no bound.
        resumed: for each optimizer, the steps since its last rehearsal and its largest recent norm, if they are known.
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
        bound: float | None,
        resumed: Sequence[tuple[int, float]] = (),
    ):
        self.every, self.batch_size, self.alpha, self.labels, self.bound = every, batch_size, alpha, labels, bound
        self.loss: float | None = None
        self.rehearsals = self.bounded = 0
        self._recent_loss = 0.0  # its running mean
        self._references: tuple[float, float] | None = None  # what it is compared with, for the present contents
        self._warned = False
        self.resume(resumed, len(optimizers))
        super().__init__(memory, optimizers, post_hook=any(map(may_nest, optimizers)))

    def __repr__(self) -> str:
        return f"Rehearsal({self._names}, every={self.every}, batch_size={self.batch_size})"

    def reset(self) -> None:
        """Note that no step was taken since the contents of the memory changed."""
        self.stepped, self._references = False, None

    def resume(self, progress: Sequence[tuple[int, float]], n: int) -> None:
        """Continue from the `progress` of n optimizers; what is missing begins anew."""
        every = [*progress, *[(0, 0.0)] * n][:n]
        self.since, self.norms = [since for since, _ in every], [norm for _, norm in every]

    @property
    def progress(self) -> list[tuple[int, float]]:
        """For each optimizer, the steps since its last rehearsal and the largest recent norm of its own gradients."""
        return list(zip(self.since, self.norms, strict=True))

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
            self._add(optimizer, place)
            self.since[place] = 0  # after an exception the rehearsal is still due
            return None

        def closure_with_rehearsal() -> Any:  # a closure computes the gradients inside the step
            result = closure()
            self._add(optimizer, place)
            self.since[place] = 0
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure_with_rehearsal}
        return (args[0], closure_with_rehearsal, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_outermost(optimizer):
            self._inside.discard(id(optimizer))

    def _add(self, optimizer: Optimizer, place: int) -> None:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self._add(optimizer, place)
        held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        params = self._memory._protected_among(held)
        drawn = self._memory._gradient_of_batch(params, self.batch_size, self.alpha, self.labels)
        if drawn is None:
            return None
        found, loss, n = drawn
        if is_sharded(self._memory.model):  # whose gradients are summed already
            (loss,) = sum_over_ranks(loss)
        elif self._memory._shared:
            *found, loss = sum_over_ranks(*(_or_zero(g, p) for g, p in zip(found, params, strict=True)), loss)
        self.loss = float(loss) / n
        if not math.isfinite(self.loss):
            raise RuntimeError(
                "the remembered loss is not finite (NaN or infinite), so it was not added to the gradients: have the "
                f"weights diverged, or are the inputs very large? Lower the learning rate of {_describe(optimizer)}"
            )
        weight, grad_scale = self.every / n, _scale_of(optimizer)
        if self.bound is not None:
            weight *= self._scale_to_bound(optimizer, params, found, place, grad_scale, weight)
        _add_to_gradients(params, found, weight * grad_scale)
        self.rehearsals += 1
        self._watch_loss(optimizer)
        return None

    def _scale_to_bound(
        self,
        optimizer: Optimizer,
        params: Params,
        found: Sequence[Tensor | None],
        place: int,
        grad_scale: float,
        weight: float,
    ) -> float:
        """Return the scale of what is added to one optimizer's gradients, and update their largest recent norm."""
        added = _norm([g for g in found if g is not None]) * weight
        own = _norm([p.grad for p in params if p.grad is not None]).to(added) / grad_scale
        both = [(p.grad, g) for p, g in zip(params, found, strict=True) if p.grad is not None and g is not None]
        dot = _inner_product(both).to(added) * (weight / grad_scale)
        if self._memory._shared:  # the scale must be the same on all ranks, down to the last bit
            own, dot = (t / dist.get_world_size() for t in sum_over_ranks(own, dot))
        norm = recent_norm(own.new_tensor(self.norms[place]), own)
        scale_now = bounding_scale(norm, own, added, dot, self.bound or 0.0)
        if isinstance(optimizer, SGD):  # whose steps are as long as gradients
            reach = _reach(optimizer, params, found, added, weight)
            scale_now = torch.minimum(scale_now, descent_scale(added.new_tensor(self.loss), reach, self.every))
        self.norms[place], scale = torch.stack([norm, scale_now]).tolist()
        self.bounded += scale < 1
        return float(scale)

    def _watch_loss(self, optimizer: Optimizer) -> None:
        """Warn once if the model does no better on the remembered examples than constant outputs would."""
        loss = self.loss or 0.0
        self._recent_loss = RECENT * self._recent_loss + (1 - RECENT) * loss if self.rehearsals > 1 else loss
        if self._warned or self.rehearsals % LOSSES:
            return
        if self._references is None:
            self._references = self._memory._reference_losses(self.alpha, self.labels)
        start, constant = self._references
        if self._recent_loss > max(LOST * constant, 2 * start):
            self._warned = True
            warnings.warn(
                f"rehearsal is losing what the model has learned: the remembered loss is {self._recent_loss:.3g}, "
                f"{start:.3g} when the examples were remembered, and {constant:.3g} for a model with constant outputs. "
                f"Lower the learning rate of {_describe(optimizer)}, or clip its gradients",
                stacklevel=2,
            )


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
            targets.append(local(old))
            additions.append(local(g if g.layout is torch.strided else g.to_dense()))
    if targets:
        torch._foreach_add_(targets, additions, alpha=weight)


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the joint norm of gradients, of which each rank may hold a part."""
    return norm_of_shards(gradients) if any(map(is_shard, gradients)) else joint_norm(gradients)


def _inner_product(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the inner product of two lists of gradients, of which each rank may hold a part."""
    return inner_product_of_shards(pairs) if any(is_shard(g) for g, _ in pairs) else inner_product(pairs)


def _or_zero(g: Tensor | None, p: Tensor) -> Tensor:
    return torch.zeros_like(p) if g is None else g.to_dense()


def _scale_of(optimizer: Optimizer) -> float:
    """Return GradScaler's factor if the optimizer itself divides by it, as fused optimizers do; else 1."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def _reach(optimizer: SGD, params: Params, found: Sequence[Tensor | None], added: Tensor, weight: float) -> Tensor:
    """Return η |a|², summed over the parameter groups if their rates η differ."""
    rates = [sgd_rate(float(group["lr"]), group["momentum"]) for group in optimizer.param_groups]
    if len(set(rates)) == 1:
        return rates[0] * added.square()
    rate_of = {id(p): rate for rate, group in zip(rates, optimizer.param_groups, strict=True) for p in group["params"]}
    parts: dict[float, list[Tensor]] = {}
    for p, g in zip(params, found, strict=True):
        if g is not None:
            parts.setdefault(rate_of[id(p)], []).append(g)
    return torch.stack([rate * (_norm(part) * weight).square() for rate, part in parts.items()]).sum()


def _describe(optimizer: Optimizer) -> str:
    """Return the optimizer's name with its learning rates."""
    rates = sorted({f"{float(group['lr']):g}" for group in optimizer.param_groups if "lr" in group})
    return type(optimizer).__name__ + (f" (lr = {', '.join(rates)})" if rates else "")
