"""Differentiating a model leaves it as it was: modes, buffers and random state are put back."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

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
    modes = [(module, module.training) for module in modules]
    plain = all(map(_only_sets_a_flag, modules))
    draws = torch.default_generator.get_state()
    try:
        if plain:
            for module in modules:
                vars(module)["training"] = False  # in a tenth of the time that nn.Module.__setattr__ takes
        else:
            model.eval()
        with _undisturbed(modules):
            yield
    finally:
        torch.default_generator.set_state(draws)
        for module, training in modes:
            if plain:
                vars(module)["training"] = training
            elif module.training != training:  # parents first; by train(), which a module may have made do more
                module.train(training)
        for module, training in modes:  # and some make it do less
            if module.training != training:
                module.training = training


def _undisturbed(modules: Sequence[nn.Module]) -> AbstractContextManager[Any]:
    """Gradients, no autocast, no other ranks: only what is needed, as rehearsal enters it every few steps."""
    devices = {p.device for module in modules for p in module._parameters.values() if p is not None}
    needed: list[AbstractContextManager[Any]] = []
    if cuda := [d for d in devices if d.type == "cuda"]:
        needed.append(torch.random.fork_rng(cuda))
    if torch.is_inference_mode_enabled():
        needed.append(torch.inference_mode(False))
    if not torch.is_grad_enabled():
        needed.append(torch.enable_grad())
    needed += [
        torch.autocast(kind, enabled=False) for kind in {d.type for d in devices} if torch.is_autocast_enabled(kind)
    ]
    if any(isinstance(module, nn.RNNBase) for module in modules):
        # cuDNN's recurrent layers cannot go backward in evaluation mode
        needed.append(torch.backends.cudnn.flags(enabled=False))
    if any(isinstance(module, DistributedDataParallel) for module in modules):
        needed.append(_alone(modules))
    return _entered(needed) if needed else nullcontext()


@contextmanager
def _entered(contexts: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _only_sets_a_flag(module: nn.Module) -> bool:
    """Whether train() and eval() are PyTorch's own, of a module in Python."""
    kind, own = type(module), vars(module)
    usual = kind.train is nn.Module.train and kind.eval is nn.Module.eval and not isinstance(module, ScriptModule)
    return usual and "training" in own and "train" not in own and "eval" not in own


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
