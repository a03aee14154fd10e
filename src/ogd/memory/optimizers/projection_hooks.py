"""Protect by projection: replace an optimizer's change of the weights, Δw, by P Δw.

With every = k the displacement of k steps, a window, is projected at once: w ← anchor + P (w − anchor), where the
anchor is a copy of the weights before the first step. As P = I − Gᵀ K⁺ G that is  w ← w − Gᵀ K⁺ G (w − anchor).
K⁺ may be soft (`projection/pseudo_inverse.py`).

An exception, such as an error of the optimizer or Ctrl-C, may end a step or a projection at any point. The anchor is
kept, and the window stays open, until its projection is complete. So the next step, `settle`, `remember` or
`unprotect` projects the weights as they are then. As P P = P, weights that are projected already do not change (with a
softness, what moves remembered outputs shrinks once more). A
projection that is interrupted while it corrects the weights undoes its corrections, up to rounding.
"""

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
from ogd.memory.optimizers.auto_every import MEASURED, Pace, clock
from ogd.memory.optimizers.step_hooks import ProtectingMemory, Protection, versions
from ogd.memory.projection.projector import Projector
from ogd.memory.ranks.sharded_parameters import local

Every = int | Literal["growing", "auto"]
# every="growing": a part of the task's steps so far, within limits
PART, SHORTEST, LONGEST = 10, 10, 300
REQUIRES_GRAD = attrgetter("requires_grad")  # read for every parameter at every step


class ProjectingMemory(ProtectingMemory, Protocol):
    """A memory as a projection needs it."""

    def _projector_for(self, tensors: Iterable[Tensor]) -> tuple[Projector, list[Tensor]] | None:
        """Return P for the parameters that have stored gradients, and these parameters; None if none has."""

    def _is_intact(self) -> bool:
        """Return whether the model still has the parameters for which projectors were made."""

    def _before_window(self, projection: "Projection") -> None:
        """Prepare for the first step of a window."""

    def _after_common_step(self, projection: "Projection") -> None:
        """Take note of a step that has ended, and is pending."""


class Projection(Protection):
    """Optimizers under protection by projection.

    Several optimizers are projected together. Their common step ends when each has stepped, when one of them begins
    its next step, or when the backward pass ends in which they step.
    """

    _memory: ProjectingMemory

    def __init__(self, memory: ProjectingMemory, optimizers: Sequence[Optimizer], every: Every, alone: bool = False):
        self._pace = Pace(alone) if every == "auto" else None
        self._every = None if isinstance(every, str) else int(every)
        self.steps = 0  # common steps since the contents of the memory changed
        self.pending = 0
        self.projector: Projector | None = None
        self._seen: list[int] = []  # ids of the optimizers' parameters
        self._params: list[Tensor] = []  # this rank's parts of the parameters
        self._watched: list[Tensor] = []  # the parameters, whose version counters the optimizer raises
        self._anchor: list[Tensor] = []
        self._versions: list[int] = []  # of the parameters when the last step ended
        self._stepped: set[int] = set()  # optimizers that have stepped since the last common step ended
        self._backward_pass = -1  # the number of the backward pass in which the optimizers step; −1 outside
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
        """How many steps share a projection; the present choice if it is "growing" or "auto"."""
        if self._pace is not None:
            return self._pace.every
        return self._every or min(max(self.steps // PART, SHORTEST), LONGEST)

    @property
    def progress(self) -> list[int]:
        """The steps since the contents of the memory changed."""
        return [self.steps]

    def settle(self) -> None:
        """Project the pending steps, including a step that an error has interrupted."""
        if self._inside:
            self._count_interrupted_step()
        if not (self.pending or self._stepped) or self.projector is None or self._close_if_disturbed():
            return
        steps = self.pending or 1
        began = clock(self._params) if self._pace else 0.0
        self._inside.add(id(self))  # as for a step: if an exception interrupts the projection, its changes are pending
        with torch.no_grad(), _no_autocast(self._params):
            self._project(self.projector, steps)
        self._versions = versions(self._watched)
        self._close()
        self._undisturbed += steps
        if self._pace:
            self._pace.record_projection(clock(self._params) - began)
        self.projector.check_room()

    def _project(self, projector: Projector, steps: int) -> None:
        w = self._params
        if not self._anchored():  # the model was moved or converted inside the window; P fits the anchors
            w = [p.to(a.device, a.dtype) for p, a in zip(w, self._anchor, strict=True)]
        opposite = torch._foreach_sub(self._anchor, w)
        c = projector.coefficients(opposite)
        if not projector.is_finite() and (name := projector.not_finite(self._params)) is not None:
            self._undo_and_raise(name, steps)
        try:
            projector.G.add_combination(w, c)
        except BaseException:  # only some parameters are corrected
            torch._foreach_copy_(w, torch._foreach_sub(self._anchor, opposite))
            raise
        if w is not self._params:
            torch._foreach_copy_(self._params, w)

    def reset(self) -> None:
        """Rebuild the projector at the next step, because G has changed."""
        self.settle()
        self._seen, self.stepped, self.outside_changes, self.steps = [], False, 0, 0
        if self._pace:  # a projection now takes another time
            self._pace = Pace(self._pace.alone)

    def overlaps(self, other: Protection) -> bool:
        """Return whether another projection moves some of the same weights."""
        if not isinstance(other, Projection) or other is self:
            return False
        return not {id(p) for p in self._params}.isdisjoint(map(id, other._params))

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if (self.pending and self._continues_window(optimizer)) or not self.enabled:
            return
        task = torch._C._current_graph_task_id()  # of the present backward pass; −1 outside
        if self._inside:
            if self._within_a_step(optimizer):
                return
            self._count_interrupted_step()  # an error interrupted a step: its changes are pending
        elif task == self._backward_pass and (task >= 0 or self._next_in_turn(optimizer)):
            self._inside.add(id(optimizer))  # another optimizer in the same common step
            return
        if self._stepped:  # the last common step ended without some optimizers
            self._finish_step(task < 0)
        elif self.pending:
            self._close_if_disturbed()
        self._backward_pass = task
        self._begin()
        if task >= 0:  # the backward pass needs its weights unchanged until it ends
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._on_backward_end(task))
        self._inside.add(id(optimizer))

    def _continues_window(self, optimizer: Optimizer) -> bool:
        """Return whether this is one more step of a window and nothing has changed since the last step.

        This is the usual case, and a short way through it saves 7 % of a step of the paper's network (every=2000).
        """
        if self._inside or self._stepped or not self._alone or torch._C._current_graph_task_id() >= 0:
            return False
        groups = optimizer.param_groups
        held = groups[0]["params"] if len(groups) == 1 else [p for group in groups for p in group["params"]]
        if list(map(id, held)) != self._seen or not all(map(REQUIRES_GRAD, held)):
            return False
        if versions(self._watched) != self._versions:
            return False
        if not self._memory._is_intact():
            self._seen = []
            return False
        if self._pace and self.pending < MEASURED:
            self._pace.start_step()
        self._inside.add(id(optimizer))
        return True

    def _next_in_turn(self, optimizer: Optimizer) -> bool:
        """Return whether the optimizer continues a common step, with the parameters it had when that step began."""
        if not self._stepped or id(optimizer) in self._stepped:
            return False
        return {id(p) for p in movable_parameters([optimizer])} <= set(self._seen)

    def _begin(self) -> None:
        params = movable_parameters(o for ref in self._optimizers if (o := ref()) is not None)
        seen = list(map(id, params))
        if self._pace and self.pending < MEASURED:
            self._pace.start_step()
        if seen != self._seen or not self._memory._is_intact() or not (self.pending or self._anchored()):
            self._seen = []  # until the projector is rebuilt
            self.settle()
            began = clock(params) if self._pace else 0.0
            self._rebuild(params)
            self._seen = seen
            if self._pace:
                self._pace.record_projection(clock(params) - began, counts=False)
        if self.projector is not None and not self.pending:
            if self._versions != versions(self._watched):
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
        self._versions = versions(self._watched)
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
        """Count a common step, and project if the window is complete."""
        self.pending += 1
        self.steps += 1
        self._stepped.clear()
        self._inside.clear()
        self._memory._after_common_step(self)
        if may_settle and self.pending >= self._window_size:
            self.settle()
            if self._pace:
                self._pace.choose(self._params[0].device)

    def _count_interrupted_step(self) -> None:
        """Count a step that an error has interrupted as a whole step, if there is something to protect."""
        if self.projector is not None:
            self._stepped |= self._inside
            self._versions = versions(self._watched)
        self._inside.clear()

    def _close(self) -> None:
        self.pending = 0
        self._stepped.clear()
        self._inside.clear()

    def _undo_and_raise(self, name: str, steps: int) -> None:
        """Undo a window after which a weight is NaN or infinite, and raise: projection would spread it to all."""
        torch._foreach_copy_(self._params, self._anchor)
        self._versions = versions(self._watched)
        self._close()
        last = "last step" if steps == 1 else f"last {steps:,} steps"
        raise RuntimeError(
            f"{name} is not finite after the {last}: NaN or infinity would reach every weight, so the protected ones "
            "were restored. Look for the cause in the loss; if the optimizer's state is not finite either, make a new "
            "optimizer"
        )

    def _close_if_disturbed(self) -> bool:
        """Close the window if something else has set the weights inside it, and return whether it has.

        The next window begins at these weights. If it happens again, for example because weights are clipped after
        every step, later windows end before it.
        """
        if self._versions == versions(self._watched):
            return False
        self._window_limit, self._undisturbed = max(self.pending, 1), 0
        lost = self.pending
        self._close()
        self._versions = versions(self._watched)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"something else has set the weights inside a window of every={self.every} steps: the next window "
                f"begins at these weights, and the {lost} steps before are not projected. Call memory.settle() before "
                "you load, clip or swap weights",
                stacklevel=4,
            )
        return True

    def _anchored(self) -> bool:
        """Return whether the anchors fit the devices and dtypes of the parameters: a model can be converted."""
        pairs = zip(self._anchor, self._params, strict=True)
        return all(a.dtype == working_dtype(p.dtype) and a.device == p.device for a, p in pairs)

    def _rebuild(self, params: Sequence[Tensor]) -> None:
        with _no_autocast(params):
            made = self._memory._projector_for(params)
        self.projector, self._watched = made if made is not None else (None, [])
        self._params = [local(p) for p in self._watched]
        self._anchor = [torch.empty_like(p, dtype=working_dtype(p.dtype)) for p in self._params]
        self._versions = versions(self._watched)


def movable_parameters(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the parameters that the optimizers move, including frozen ones that still have a gradient."""
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    return held if all(map(REQUIRES_GRAD, held)) else [p for p in held if p.requires_grad or p.grad is not None]


@contextmanager
def _no_autocast(params: Sequence[Tensor]) -> Iterator[None]:
    """Disable autocast for the block, in case the optimizer steps inside it."""
    with ExitStack() as stack:
        for context in no_autocast(p.device for p in params):
            stack.enter_context(context)
        yield
