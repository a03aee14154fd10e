"""Watch a model's training passes, so that rehearsal takes no more memory than they do."""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ogd.memory.model.parameters import first_parameter


class TrainingPass:
    """The last training pass of a model.

    Attributes:
        numbers: the size of the largest input tensor of the batch; None before the first pass.
        in_bfloat16: whether it ran under autocast to bfloat16.
    """

    def __init__(self) -> None:
        self.numbers: int | None = None
        self.in_bfloat16 = False
        self._handle: Any = None

    def watch(self, model: nn.Module) -> None:
        """Watch the passes of a model in training mode from now on."""
        if self._handle is None:
            hook = _Hook(self, model)
            self._handle = hook.handle = model.register_forward_pre_hook(hook, with_kwargs=True)

    def release(self) -> None:
        """Watch no more."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def note(self, model: nn.Module, inputs: Any) -> None:
        """Note a pass; every training step waits for it, so the usual single tensor has a short way."""
        (args, kwargs), only = inputs, None
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
            only = args[0]
        sizes = [t.numel() for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)] if only is None else []
        self.numbers = max(sizes, default=None) if only is None else only.numel()
        kind = _device_type(model) if only is None else only.device.type
        self.in_bfloat16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.bfloat16

    def autocast(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return the autocast of the pass; float16 is left out, because its gradients would need a scale."""
        return torch.autocast(_device_type(model), torch.bfloat16) if self.in_bfloat16 else nullcontext()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which watches no model."""
        return {**vars(self), "_handle": None}


class _Hook:
    """A hook that works only in its own module: in copies and pickles of the module it does nothing."""

    def __init__(self, last: TrainingPass | None = None, model: nn.Module | None = None):
        self.last = None if last is None else weakref.ref(last)
        self.model = None if model is None else weakref.ref(model)
        self.handle: Any = None

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self.last is None or self.model is None or self.model() is not model:
            return
        last = self.last()
        if last is None:  # the memory is gone
            self.handle.remove()
        elif model.training and torch.is_grad_enabled():
            last.note(model, (args, kwargs))

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


def _device_type(model: nn.Module) -> str:
    first = first_parameter(model)
    return "cpu" if first is None else first.device.type
