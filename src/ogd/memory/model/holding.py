"""Keeping the buffers of one module that its forward pass would change. One rule, by what it does, not by its type.

Each pass that could change them works on a copy, and what it did to the copy is dropped. Where a module without
children changed its buffers only because it was in training mode (BatchNorm, InstanceNorm, spectral norm), it runs in
evaluation mode instead, whatever its parents do: training computes with the kept statistics, as evaluation will.
"""

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

if TYPE_CHECKING:
    from ogd.memory.model.statistics import Statistics

Buffers = dict[str, Tensor | None]


class Hold:
    """A module under the rule, by a hook before and one after its forward pass."""

    def __init__(self, name: str, module: nn.Module, owner: "Statistics"):
        self.name, self.module, self.owner = name, weakref.ref(module), weakref.ref(owner)
        self.evaluates = False  # run in evaluation mode
        self.still: set[bool] = set()  # modes in which a pass left its buffers alone
        self._marks: list[int] = []
        self._values: Buffers = {}
        self._passes: list[tuple[bool, Buffers, Buffers | None]] = []
        self._handles = [
            module.register_forward_pre_hook(Hook(self, "before"), prepend=True),
            # behind those of another memory that came before: who copied last puts back first
            module.register_forward_hook(Hook(self, "after"), with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def before(self, module: nn.Module, *_: Any) -> None:
        training = module.training
        if self.evaluates:
            module.training = False
        own = dict(module._buffers)
        if module.training in self.still:
            if versions(own) != self._marks:  # the user has set them
                self._marks, self._values = versions(own), copied(own)
            self._passes.append((training, own, None))
            return
        copies = copied(own)
        if self._keeps():
            module._buffers.update(copies)
        self._passes.append((training, own, copies))

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if not self._passes:  # held only since the pass began
            return None
        training, own, copies = self._passes.pop()
        mode, module.training = module.training, training
        if not self._keeps():
            self._notice(module, copies, mode)
        elif copies is None:
            self._put_back(module, own, mode)
        else:
            moved = any(module._buffers.get(n) is not b for n, b in copies.items()) or changed(own, copies)
            module._buffers.clear()
            module._buffers.update(own)
            if out is None:  # it raised
                return None
            if not moved:
                self.still.add(mode)
            elif mode and not any(module.children()):
                self.evaluates, self.still = True, set()
                return self._again(module, args, kwargs)
            else:
                self._warn(DROPPED)
        return None

    def _put_back(self, module: nn.Module, own: Buffers, mode: bool) -> None:
        """A module that seemed to leave its buffers alone has changed them: from the next pass on it gets copies."""
        if versions(module._buffers) == self._marks:
            return
        self.still.discard(mode)
        module._buffers.clear()
        module._buffers.update(own)
        with torch.no_grad():
            for name, value in self._values.items():
                b = own[name]
                if b is not None and value is not None:
                    b.resize_(value.shape).copy_(value)

    def _notice(self, module: nn.Module, copies: Buffers | None, mode: bool) -> None:
        """Where buffers may move, say that they do."""
        if copies is not None and changed(copies, module._buffers):
            self._warn(MOVED)
            self.remove()
        else:
            self.still.add(mode)

    def _again(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first pass that changed something is repeated in evaluation mode."""
        self.before(module)
        out = None
        try:
            out = module.forward(*args, **kwargs)
        finally:
            self.after(module, args, kwargs, out)
        return out

    def _keeps(self) -> bool:
        owner = self.owner()
        return owner is not None and owner.way == "keep"

    def _warn(self, message: str) -> None:
        owner = self.owner()
        if owner is not None:
            owner.warn(message.format(name=self.name or "the model"))


class Hook:
    """A hook that is one in its own module only: copies and pickles of the module get one that does nothing."""

    def __init__(self, hold: Hold | None = None, moment: str = ""):
        self.hold, self.moment = hold, moment

    @_disable_dynamo  # torch.compiler.disable would import the compiler with this module, for seconds
    def __call__(self, module: nn.Module, *args: Any) -> Any:
        hold = self.hold
        if hold is None or hold.module() is not module:
            return None
        if hold.owner() is None:  # the memory is gone
            hold.remove()
        if not hold._handles and not hold._passes:
            return None
        return getattr(hold, self.moment)(module, *args)

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        return Hook, ()


def changed(before: Buffers, now: Buffers) -> bool:
    """Whether a buffer has another value."""
    for name, b in before.items():
        other = now.get(name)
        if (b is None) != (other is None):
            return True
        if b is not None and other is not None and not _same(b, other):
            return True
    return False


def copied(buffers: Buffers) -> Buffers:
    return {name: None if b is None else b.detach().clone() for name, b in buffers.items()}


def versions(buffers: Buffers) -> list[int]:
    """What an in-place change of a buffer, or another one in its place, makes different."""
    known = [b for b in buffers.values() if b is not None and not b.is_inference()]
    return [number for b in known for number in (id(b), b._version)]


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.eq(a, b).logical_or(a.ne(a) & b.ne(b)).all())  # NaN is the same as NaN


MOVED = (
    "the buffers of {name} move in its forward pass (statistics='move'), and remembered outputs drift with them as if "
    "unprotected; statistics='keep' keeps them"
)
DROPPED = (
    "the forward pass of {name} changes its buffers, which evaluation mode does not prevent: since "
    "a task was remembered, what a pass does to them is dropped after it. If they must move (a cache, a hidden state), "
    "use Memory(..., statistics='move')"
)
