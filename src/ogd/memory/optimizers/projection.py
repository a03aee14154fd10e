"""Protection by projection: what an optimizer did to the weights, Δw, becomes P Δw.

With every = k the displacement of k steps, a window, is projected at once: w ← anchor + P (w − anchor), where the
anchor is the weights before the first of them. As P = I − Gᵀ K⁺ G that is  w ← w − Gᵀ K⁺ G (w − anchor).

An exception may end a step or a projection at any point: an error of the optimizer's, or Ctrl-C. The anchor is kept,
and the window stays open, until its projection is complete. So the next step, `settle`, `remember` or `unprotect`
projects whatever the weights are by then, and as P P = P it does no harm if they are projected already. A projection
that is interrupted while it corrects the weights takes its corrections back, up to their rounding.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ogd.memory.blocks.block import working_dtype
from ogd.memory.model.eval_mode import no_autocast
from ogd.memory.optimizers.pace import MEASURED, Pace, clock
from ogd.memory.optimizers.protection import ProtectingMemory, Protection, versions
from ogd.memory.projection.projector import Projector

Every = int | Literal["auto"]
REQUIRES_GRAD = attrgetter("requires_grad")  # read of every parameter at every step


class ProjectingMemory(ProtectingMemory, Protocol):
    """What a projection asks of its memory."""

    def _projector_for(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        """Return P for those of an optimizer's parameters that have stored gradients, and these; None without any."""

    def _is_intact(self) -> bool:
        """Whether the model still has the parameters for which projectors were made."""

    def _before_window(self, projection: "Projection") -> None:
        """Prepare for the first step of a window."""


class Projection(Protection):
    """Optimizers under protection by projection.

    Several are projected together: a step is over when each has stepped, or one of them begins again, or the backward
    pass is over in which they step.
    """

    _memory: ProjectingMemory

    def __init__(self, memory: ProjectingMemory, optimizers: Sequence[Optimizer], every: Every, alone: bool = False):
        self._pace = Pace(alone) if every == "auto" else None
        self._every = 1 if every == "auto" else every
        self.pending = 0
        self.projector: Projector | None = None
        self._seen: list[int] = []  # ids of what the optimizers move
        self._params: list[Tensor] = []
        self._anchor: list[Tensor] = []
        self._versions: list[int] = []  # of the parameters when the last step ended
        self._stepped: set[int] = set()  # those that have stepped since the last step of all was over
        self._backward_pass = -1  # the backward pass in which they step, if they do
        self._window_limit, self._undisturbed = 0, 0  # see _close_if_disturbed
        self._window_size = 0  # steps of the present window
        self._alone = len(optimizers) == 1
        self._warned = False
        self.outside_changes = (
            0  # windows before which something else had changed the weights, and we have not warned of it
        )
        super().__init__(memory, optimizers)

    def __repr__(self) -> str:
        return f"Projection({self._names}, every={self.every}, {self.pending} steps pending)"

    @property
    def every(self) -> int:
        """How many steps share a projection; with "auto", at present."""
        return self._every if self._pace is None else self._pace.every

    def settle(self) -> None:
        """Project what is pending, also of a step that an error ended half-way."""
        if self._inside:
            self._count_interrupted_step()
        if not (self.pending or self._stepped) or self.projector is None or self._close_if_disturbed():
            return
        steps = self.pending or 1
        began = clock(self._params) if self._pace else 0.0
        self._inside.add(id(self))  # like a step: if an exception ends it, what it did is pending
        with torch.no_grad(), _no_autocast(self._params):
            self._project(self.projector, steps)
        self._versions = versions(self._params)
        self._close()
        self._undisturbed += steps
        if self._pace:
            self._pace.record_projection(clock(self._params) - began)
        self.projector.check_room()

    def _project(self, projector: Projector, steps: int) -> None:
        w = self._params
        if not self._anchored():  # moved or converted inside the window: P is where the anchors are
            w = [p.to(a.device, a.dtype) for p, a in zip(w, self._anchor, strict=True)]
        opposite = torch._foreach_sub(self._anchor, w)
        c = projector.coefficients(opposite)
        if not projector.is_finite() and not all_finite(self._params):
            self._undo_and_raise(projector, steps)
        try:
            projector.G.add_combination(w, c)
        except BaseException:  # some parameters have their correction, others not
            torch._foreach_copy_(w, torch._foreach_sub(self._anchor, opposite))
            raise
        if w is not self._params:
            torch._foreach_copy_(self._params, w)

    def reset(self) -> None:
        """Make the projector again at the next step, because G has changed."""
        self.settle()
        self._seen, self.stepped, self.outside_changes = [], False, 0
        if self._pace:  # and takes another time
            self._pace = Pace(self._pace.alone)

    def overlaps(self, other: Protection) -> bool:
        """Whether another projection moves some of the same weights."""
        if not isinstance(other, Projection) or other is self:
            return False
        return not {id(p) for p in self._params}.isdisjoint(map(id, other._params))

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if (self.pending and self._continues_window(optimizer)) or not self.enabled:
            return
        task = torch._C._current_graph_task_id()  # of the backward pass we are in, −1 outside
        if self._inside:
            if self._within_a_step(optimizer):
                return
            self._count_interrupted_step()  # a step raised half-way: what it did is pending
        elif task == self._backward_pass and (task >= 0 or self._next_in_turn(optimizer)):
            self._inside.add(id(optimizer))  # another one's turn in the same step
            return
        if self._stepped:  # the last step is over, without some of them
            self._finish_step(task < 0)
        elif self.pending:
            self._close_if_disturbed()
        self._backward_pass = task
        self._begin()
        if task >= 0:  # optimizers in the backward pass: until it is over, it needs the weights as they are
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._on_backward_end(task))
        self._inside.add(id(optimizer))

    def _continues_window(self, optimizer: Optimizer) -> bool:
        """Whether this is one more step of a window and nothing has changed since the last one.

        That is the usual case, and this finds it out in few instructions: after a whole step of training none of ours
        are in the processor's cache.
        """
        if self._inside or self._stepped or not self._alone or torch._C._current_graph_task_id() >= 0:
            return False
        groups = optimizer.param_groups
        held = groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]
        if list(map(id, held)) != self._seen or not all(map(REQUIRES_GRAD, held)):
            return False
        if versions(self._params) != self._versions:
            return False
        if not self._memory._is_intact():
            self._seen = []
            return False
        if self._pace and self.pending < MEASURED:
            self._pace.start_step()
        self._inside.add(id(optimizer))
        return True

    def _next_in_turn(self, optimizer: Optimizer) -> bool:
        """Whether it goes on with the step of others, with the parameters that it had when that began."""
        if not self._stepped or id(optimizer) in self._stepped:
            return False
        return {id(p) for p in movable_parameters([optimizer])} <= set(self._seen)

    def _begin(self) -> None:
        params = movable_parameters(o for ref in self._optimizers if (o := ref()) is not None)
        seen = list(map(id, params))
        if self._pace and self.pending < MEASURED:
            self._pace.start_step()
        if seen != self._seen or not self._memory._is_intact() or not (self.pending or self._anchored()):
            self._seen = []  # until all is made anew
            self.settle()
            began = clock(params) if self._pace else 0.0
            self._rebuild(params)
            self._seen = seen
            if self._pace:
                self._pace.record_projection(clock(params) - began, counts=False)
        if self.projector is not None and not self.pending:
            if self._versions != versions(self._params):
                self._undisturbed = 0
                self.outside_changes += not self._warned
            self._memory._before_window(self)
            with torch.no_grad():
                torch._foreach_copy_(self._anchor, self._params)
            self._window_size = (
                self.every if self._undisturbed > self.every else min(self.every, self._window_limit or self.every)
            )

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self.enabled or not self._is_outermost(optimizer):
            return
        self.stepped = True
        if self.projector is None:
            self._inside.clear()
            return
        self._versions = versions(self._params)
        if self._alone and self._backward_pass < 0:
            self._finish_step()
            return
        self._stepped.add(id(optimizer))
        self._inside.discard(id(optimizer))  # not before it counts as stepped, or as pending
        if self._backward_pass < 0 and self._all_stepped():
            self._finish_step()

    def _all_stepped(self) -> bool:
        return all(id(o) in self._stepped for ref in self._optimizers if (o := ref()) is not None)

    def _on_backward_end(self, task: int) -> None:
        if task == self._backward_pass and self._stepped:
            self._finish_step()
            self._backward_pass = -1

    def _finish_step(self, may_settle: bool = True) -> None:
        """All optimizers that will step have done so."""
        self.pending += 1
        self._stepped.clear()
        self._inside.clear()
        if may_settle and self.pending >= self._window_size:
            self.settle()
            if self._pace:
                self._pace.choose(self._params[0].device)

    def _count_interrupted_step(self) -> None:
        """Count a step that raised half-way as one that was made, where there is something to protect."""
        if self.projector is not None:
            self._stepped |= self._inside
            self._versions = versions(self._params)
        self._inside.clear()

    def _close(self) -> None:
        self.pending = 0
        self._stepped.clear()
        self._inside.clear()

    def _undo_and_raise(self, projector: Projector, steps: int) -> None:
        """Undo a window of steps after which a weight is NaN or infinite: projected, it would spread to all weights."""
        name = next(name for name, p in zip(projector.names, self._params, strict=True) if not all_finite([p]))
        torch._foreach_copy_(self._params, self._anchor)
        self._versions = versions(self._params)
        self._close()
        last = "last step" if steps == 1 else f"last {steps:,} steps"
        raise RuntimeError(
            f"{name} is not finite after the {last}: NaN or infinity would reach every weight, so all protected ones "
            "were put back as they were. Look for the cause in the loss; if the optimizer's state "
            "has it too, make a new optimizer"
        )

    def _close_if_disturbed(self) -> bool:
        """Whether somebody else set the weights inside a window: then the next one begins at them.

        If it happens again, as with weights clipped after every step, windows end before it from then on.
        """
        if self._versions == versions(self._params):
            return False
        self._window_limit, self._undisturbed = max(self.pending, 1), 0
        lost = self.pending
        self._close()
        self._versions = versions(self._params)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the weights were set by something else inside a window of every={self.every} steps: they are taken "
                f"as they are now, and the {lost} steps before are not projected. Call memory.settle() before you "
                "load, clip or swap weights",
                stacklevel=4,
            )
        return True

    def _anchored(self) -> bool:
        """Whether the anchors are where the parameters are, and as precise: a model can be moved or converted."""
        pairs = zip(self._anchor, self._params, strict=True)
        return all(a.dtype == working_dtype(p.dtype) and a.device == p.device for a, p in pairs)

    def _rebuild(self, params: Sequence[Tensor]) -> None:
        with _no_autocast(params):
            made = self._memory._projector_for(params)
        self.projector, self._params = made if made is not None else (None, [])
        self._anchor = [torch.empty_like(p, dtype=working_dtype(p.dtype)) for p in self._params]
        self._versions = versions(self._params)


def movable_parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return what the optimizers move, including frozen parameters that still have a gradient."""
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return held if all(map(REQUIRES_GRAD, held)) else [p for p in held if p.requires_grad or p.grad is not None]


def all_finite(params: Sequence[Tensor]) -> bool:
    """Whether no number is NaN or infinite. A sum is finite only if all of it is, and takes a fraction of the time."""
    return all(math.isfinite(float(p.detach().sum())) or bool(p.isfinite().all()) for p in params)


@contextmanager
def _no_autocast(params: Sequence[Tensor]) -> Iterator[None]:
    """Disable autocast, in case the step is inside it."""
    with ExitStack() as stack:
        for context in no_autocast(p.device for p in params):
            stack.enter_context(context)
        yield
