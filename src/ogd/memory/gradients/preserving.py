"""Differentiating a model leaves it as it was: modes, buffers and random state are put back."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.jit import ScriptModule
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def preserving(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode with gradients; afterwards it and the random state are as before."""
    with _same_buffers(model), calm(model):
        yield


@contextmanager
def calm(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode with gradients; its modes and the random state are put back."""
    modules = list(model.modules())
    devices = {p.device for module in modules for p in module._parameters.values() if p is not None}
    with ExitStack() as stack:  # only what is needed: rehearsal enters it every few steps
        stack.enter_context(torch.random.fork_rng([d for d in devices if d.type == "cuda"]))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        for kind in {d.type for d in devices}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if any(isinstance(module, nn.RNNBase) for module in modules):
            # cuDNN's recurrent layers cannot go backward in evaluation mode
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(_evaluation(model, modules))
        if any(isinstance(module, DistributedDataParallel) for module in modules):
            stack.enter_context(_alone(modules))
        yield


@contextmanager
def _evaluation(model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
    modes = [(module, module.training) for module in modules]
    plain = all(map(_only_sets_a_flag, modules))
    try:
        if plain:
            for module in modules:
                vars(module)["training"] = False  # in a tenth of the time that nn.Module.__setattr__ takes
        else:
            model.eval()
        yield
    finally:
        for module, training in modes:
            if plain:
                vars(module)["training"] = training
            elif module.training != training:  # parents first; by train(), which a module may have made do more
                module.train(training)
        for module, training in modes:  # and some make it do less
            if module.training != training:
                module.training = training


def _only_sets_a_flag(module: nn.Module) -> bool:
    """Whether train() and eval() are PyTorch's own, of a module in Python."""
    kind, own = type(module), vars(module)
    usual = kind.train is nn.Module.train and kind.eval is nn.Module.eval
    return usual and "training" in own and not own.keys() & {"train", "eval"} and not isinstance(module, ScriptModule)


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    kept = [
        (module._buffers, {name: (b, None if b is None else b.detach().clone()) for name, b in module._buffers.items()})
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for buffers, before in kept:
            buffers.clear()
            for name, (buffer, value) in before.items():
                buffers[name] = buffer
                if buffer is not None and value is not None and not torch.equal(buffer, value):
                    with torch.no_grad():
                        buffer.copy_(value)


@contextmanager
def _alone(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Calls of DistributedDataParallel go straight to its module: it would wait for the other ranks' calls."""
    wrappers = [module for module in modules if isinstance(module, DistributedDataParallel)]
    try:
        for wrapper in wrappers:
            vars(wrapper)["forward"] = wrapper.module.__call__
        yield
    finally:
        for wrapper in wrappers:
            vars(wrapper).pop("forward", None)
