"""Freeze the buffers of one module that its forward pass would change.

The rule depends on what the module does, not on its type. If its own evaluation mode prevents the change (BatchNorm,
InstanceNorm, spectral norm), the module runs in evaluation mode, whatever its parents do, and uses the frozen
statistics in training too. Its children keep their own modes. To find this out, the module is called once or twice
before its first pass in training mode, and afterwards restored. Otherwise each pass works on copies of the buffers,
which are dropped after it.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from ogd.memory.model.running_statistics import RunningStatistics

Buffers = dict[str, Tensor | None]
COPYABLE = (Tensor, int, float, str, torch.dtype, torch.device)


class BufferHooks:
    """The hooks before and after a module's forward pass that freeze its buffers, or warn that they change."""

    def __init__(self, name: str, module: nn.Module, owner: "RunningStatistics"):
        self.name, self.module, self.owner = name, weakref.ref(module), weakref.ref(owner)
        self.evaluates = False  # whether the module runs in evaluation mode
        self.stable_modes: set[bool] = set()  # modes in which a pass left its buffers alone
        self.tried = False  # whether training mode was tried, and evaluation mode if that changed the buffers
        self.trying = False
        self.changes_buffers = False  # whether a pass changed its buffers
        self._versions: list[int] = []
        self._values: Buffers = {}
        self._passes: list[tuple[bool, Buffers, Buffers | None]] = []
        self._handles: list[Any] = []
        self._handles = [
            module.register_forward_pre_hook(Hook(self, "before"), prepend=True, with_kwargs=True),
            # after the hooks of an earlier memory: the memory that copied last restores first
            module.register_forward_hook(Hook(self, "after"), with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        training = module.training
        if training and not self.tried and self._freezes() and (self.changes_buffers or can_be_copied(args, kwargs)):
            self._try(module, args, kwargs)
        if self.evaluates:
            module.training = False
        own = dict(module._buffers)
        if module.training in self.stable_modes:
            if versions(own) != self._versions:  # the user has set them
                self._versions, self._values = versions(own), clone_buffers(own)
            self._passes.append((training, own, None))
            return
        copies = clone_buffers(own)
        if self._freezes():
            module._buffers.update(copies)
        self._passes.append((training, own, copies))

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not self._passes:  # hooked while the pass was under way
            return
        training, own, copies = self._passes.pop()
        mode, module.training = module.training, training
        if not self._freezes():
            self._warn_if_changed(module, copies, mode)
        elif copies is None:
            self._restore(module, own, mode)
        else:
            changed = buffers_changed(module, copies, own)
            module._buffers.clear()
            module._buffers.update(own)
            if out is None:  # the pass raised
                self.tried = False
            elif not changed:
                self.stable_modes.add(mode)
            elif self.tried or not mode:
                self._warn(DROPPED)
            self.changes_buffers |= changed

    def _try(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find out whether training mode changes the buffers, and if so whether evaluation mode prevents it.

        Evaluation mode must also return an output of the same form: some modules return losses in training.
        """
        self.trying = True
        try:
            with suppress(Exception):  # the pass itself, which follows, raises it
                changed, signature = try_mode(module, True, args, kwargs)
                if not changed:
                    self.stable_modes.add(True)
                elif try_mode(module, False, args, kwargs) == (False, signature):
                    self.evaluates, self.stable_modes = True, {False}
            self.tried = True
        finally:
            self.trying = False

    def _restore(self, module: nn.Module, own: Buffers, mode: bool) -> None:
        """Restore the buffers if a stable mode has changed them; from the next pass on the module gets copies."""
        if versions(module._buffers) == self._versions:
            return
        self.stable_modes.discard(mode)
        self.tried &= not mode
        module._buffers.clear()
        module._buffers.update(own)
        with torch.no_grad():
            for name, value in self._values.items():
                b = own[name]
                if b is not None and value is not None:
                    b.resize_(value.shape).copy_(value)

    def _warn_if_changed(self, module: nn.Module, copies: Buffers | None, mode: bool) -> None:
        """Warn if a pass has changed buffers that are not frozen."""
        if copies is not None and values_changed(copies, module._buffers):
            self._warn(MOVED)
            self.remove()
        else:
            self.stable_modes.add(mode)

    def _freezes(self) -> bool:
        owner = self.owner()
        return owner is not None and owner.frozen

    def _warn(self, message: str) -> None:
        owner = self.owner()
        if owner is not None:
            owner.warn(message.format(name=self.name or "the model"))


class Hook:
    """A hook that works only in its own module: in copies and pickles of the module it does nothing."""

    def __init__(self, hooks: BufferHooks | None = None, moment: str = ""):
        self.hooks, self.moment = hooks, moment

    @_disable_dynamo  # torch.compiler.disable would import the compiler, which takes seconds
    def __call__(self, module: nn.Module, *args: Any) -> Any:
        hooks = self.hooks
        if hooks is None or hooks.module() is not module:
            return None
        owner = hooks.owner()
        if owner is None or owner._hooks.get(hooks.name) is not hooks:  # the memory is gone, or has released the module
            hooks.remove()
        if hooks.trying or not (hooks._handles or hooks._passes):
            return None
        return getattr(hooks, self.moment)(module, *args)

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        return Hook, ()


def try_mode(module: nn.Module, mode: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
    """Call a module in a mode, and return whether it changed its buffers, and the signature of its output."""
    cuda = {t.device for t in (*module.parameters(), *module.buffers()) if t.is_cuda}
    # else activation checkpointing would count the tensors that the trial saves for a backward pass
    uncounted = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda t: t)
    with torch.random.fork_rng(cuda), restore_module(module), uncounted:
        own = dict(module._buffers)
        copies = clone_buffers(own)
        module._buffers.update(copies)
        module.training = mode
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.clone, (args, kwargs))  # the module may change them in place
        out = module(*args, **kwargs)
        return buffers_changed(module, copies, own), output_signature(out)


@contextmanager
def restore_module(module: nn.Module) -> Iterator[None]:
    """Copy all buffers of a module and its children for the block; then restore their buffers and attributes."""
    before = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        for part, _, own in before:
            part._buffers.update(clone_buffers(own))
        yield
    finally:
        for part, attributes, own in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(own)


def can_be_copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether all arguments can be copied: a trial would change a cache, and exhaust an iterator."""
    return all(leaf is None or isinstance(leaf, COPYABLE) for leaf in pytree.tree_leaves((args, kwargs)))


def output_signature(out: Any) -> tuple[Any, ...]:
    """Return the structure, shapes and dtypes of an output: all that a caller may rely on."""
    leaves, structure = pytree.tree_flatten(out)
    return structure, *((t.shape, t.dtype, t.requires_grad) if isinstance(t, Tensor) else type(t) for t in leaves)


def buffers_changed(module: nn.Module, copies: Buffers, own: Buffers) -> bool:
    """Return whether a pass has changed or replaced the copies of the module's own buffers."""
    return any(module._buffers.get(n) is not b for n, b in copies.items()) or values_changed(own, copies)


def values_changed(before: Buffers, now: Buffers) -> bool:
    """Return whether the value of a buffer differs."""
    for name, b in before.items():
        other = now.get(name)
        if (b is None) != (other is None):
            return True
        if b is not None and other is not None and not _same(b, other):
            return True
    return False


def clone_buffers(buffers: Buffers) -> Buffers:
    return {name: None if b is None else b.detach().clone() for name, b in buffers.items()}


def versions(buffers: Buffers) -> list[int]:
    """Return numbers that differ once a buffer is changed in place or replaced."""
    known = [b for b in buffers.values() if b is not None and not b.is_inference()]
    return [number for b in known for number in (id(b), b._version)]


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.eq(a, b).logical_or(a.ne(a) & b.ne(b)).all())  # NaN is the same as NaN


MOVED = (
    "the forward pass of {name} changes its buffers (freeze_buffers=False), so remembered outputs drift as if "
    "unprotected; freeze_buffers=True keeps them"
)
DROPPED = (
    "the forward pass of {name} changes its buffers, and its evaluation mode does not prevent that, or returns an "
    "output of another form: since a task was remembered, these changes are dropped after each pass. If the buffers "
    "must change (a cache, a hidden state), use freeze_buffers=False"
)
