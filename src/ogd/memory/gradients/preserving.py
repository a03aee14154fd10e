"""Differentiating a model leaves it as it was: modes, attributes, parameters, buffers and random state."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ogd.memory.model.walking import modules_of

_NOTHING = nullcontext()
_WITH_CARE = (nn.RNNBase, DistributedDataParallel)


@contextmanager
def preserving(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode with gradients; afterwards it and the random state are as before.

    Every attribute of every module is the same object again, and every parameter and buffer has the same bits,
    whatever a forward pass did: `max_norm` renormalises an embedding, and a norm may keep the weight that it computed.
    """
    held = [*model.parameters(), *model.buffers()]
    with _same_numbers(held), _same_attributes(model), calm(model):
        yield
    if any(now is not before for now, before in zip([*model.parameters(), *model.buffers()], held, strict=True)):
        raise RuntimeError(
            "a forward pass has replaced parameters or buffers of the model, and they cannot be put back"
        )


@contextmanager
def calm(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode with gradients; its modes and the random state are put back.

    Rehearsal enters it every few steps, so it does no more than is needed.
    """
    modules = list(modules_of(model))
    owns = [vars(module) for module in modules]
    kinds = set(map(type, modules))
    plain = all(map(_only_sets_a_flag, kinds)) and not any("train" in own or "eval" in own for own in owns)
    modes = [module.training for module in modules]
    draws = torch.default_generator.get_state()
    with entered(_needed(modules, kinds)):
        try:
            if plain:
                for own in owns:
                    own["training"] = False  # in a tenth of the time that nn.Module.__setattr__ takes
            else:
                model.eval()
            yield
        finally:
            if plain:
                for own, training in zip(owns, modes, strict=True):
                    own["training"] = training
            else:
                _put_back(modules, modes)
            torch.default_generator.set_state(draws)


def entered(contexts: Sequence[AbstractContextManager[Any]]) -> AbstractContextManager[Any]:
    """All of them as one; mostly there are none, and an ExitStack would cost more than the rest."""
    if not contexts:
        return _NOTHING
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        return stack.pop_all()


def _only_sets_a_flag(kind: type[nn.Module]) -> bool:
    """Whether train() and eval() of a kind of module are PyTorch's own, and the flag is an attribute."""
    usual = kind.train is nn.Module.train and kind.eval is nn.Module.eval
    return usual and not hasattr(kind, "training") and not issubclass(kind, ScriptModule)


def _put_back(modules: Sequence[nn.Module], modes: Sequence[bool]) -> None:
    for module, training in zip(modules, modes, strict=True):
        if module.training != training:  # parents first; by train(), which a module may have made do more
            module.train(training)
    for module, training in zip(modules, modes, strict=True):  # and some make it do less
        if module.training != training:
            module.training = training


def _needed(modules: Sequence[nn.Module], kinds: set[type[nn.Module]]) -> list[AbstractContextManager[Any]]:
    """What it takes here to have gradients, no autocast, and no other ranks."""
    params = [p for module in modules if module._parameters for p in module._parameters.values() if p is not None]
    found: list[AbstractContextManager[Any]] = []
    if torch.is_inference_mode_enabled():
        found.append(torch.inference_mode(False))
    if not torch.is_grad_enabled():
        found.append(torch.enable_grad())
    devices = {torch.device("cpu")} if all(p.is_cpu for p in params) else {p.device for p in params}
    if cuda := [device for device in devices if device.type == "cuda"]:
        found.append(torch.random.fork_rng(cuda))
    found += uncast(devices)
    if any(issubclass(kind, _WITH_CARE) for kind in kinds):
        # cuDNN's recurrent layers cannot go backward in evaluation mode
        found += [torch.backends.cudnn.flags(enabled=False), _alone(modules)]
    return found


def uncast(devices: Iterable[torch.device]) -> list[AbstractContextManager[Any]]:
    """What turns autocast off, under which products are rounded to half precision; nothing where it is off."""
    kinds = {device.type for device in devices}
    return [torch.autocast(kind, enabled=False) for kind in kinds if torch.is_autocast_enabled(kind)]


@contextmanager
def _same_attributes(model: nn.Module) -> Iterator[None]:
    """Put back what the modules hold: their attributes, and the members of their lists and dictionaries."""
    owns = [vars(module) for module in model.modules()]
    plain = {id(value): value for own in owns for value in own.values() if type(value) in (list, dict)}
    kept = [(container, container.copy()) for container in (*owns, *plain.values())]
    try:
        yield
    finally:
        for container, before in kept:
            _refill(container, before)


def _refill(container: dict[str, Any] | list[Any], before: Any) -> None:
    """Give a dictionary or list the members it had, unless it has them."""
    if isinstance(container, list):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container[:] = before
    elif list(container) != list(before) or any(container[key] is not value for key, value in before.items()):
        container.clear()
        container.update(before)


@contextmanager
def _same_numbers(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put back the values of tensors that were changed in place."""
    kept = [
        (t, t.detach().clone())
        for t in tensors
        if not (t.is_meta or isinstance(t, UninitializedParameter | UninitializedBuffer))
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for t, value in kept:
                if not torch.equal(t, value):
                    (t if t.shape == value.shape else t.resize_(value.shape)).copy_(value)


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
