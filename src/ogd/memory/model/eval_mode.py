"""Put a model into evaluation mode for a block, and restore the model and the random state after it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ogd.memory.ranks.sharded_parameters import local, reshard


@contextmanager
def isolated_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode with gradients; afterwards restore all of it, and the random state.

    After the block every attribute of every module is the same object as before, and every parameter and buffer has
    the same bits. A forward pass may change them: an embedding with `max_norm` renormalises its weight.
    """
    held = [*model.parameters(), *model.buffers()]
    with _restore_values(held), _restore_attributes(model), eval_mode(model):
        yield
    if any(now is not before for now, before in zip([*model.parameters(), *model.buffers()], held, strict=True)):
        raise RuntimeError(
            "a forward pass has replaced parameters or buffers of the model, which cannot be restored: change their "
            "values in place instead"
        )


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode with gradients; afterwards restore its modes and the random state.

    Rehearsal uses it every few steps, so it restores only what the forward pass of a usual model changes.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    random_state = torch.default_generator.get_state()
    with ExitStack() as stack:
        for context in _contexts(modules):
            stack.enter_context(context)
        try:
            model.eval()
            yield
        finally:
            _restore_modes(modules, modes)
            reshard(model)
            torch.default_generator.set_state(random_state)


def _restore_modes(modules: Sequence[nn.Module], modes: Sequence[bool]) -> None:
    for module, training in zip(modules, modes, strict=True):
        if module.training != training:  # parents first; a module may do more in its own train()
            module.train(training)
    for module, training in zip(modules, modes, strict=True):  # and another may do less
        if module.training != training:
            module.training = training


def _contexts(modules: Sequence[nn.Module]) -> list[AbstractContextManager[Any]]:
    """Return the contexts that enable gradients, disable autocast and bypass DDP, as far as they are needed."""
    params = [p for module in modules for p in module._parameters.values() if p is not None]
    found: list[AbstractContextManager[Any]] = []
    if torch.is_inference_mode_enabled():
        found.append(torch.inference_mode(False))
    if not torch.is_grad_enabled():
        found.append(torch.enable_grad())
    devices = {torch.device("cpu")} if all(p.is_cpu for p in params) else {p.device for p in params}
    if cuda := [device for device in devices if device.type == "cuda"]:
        found.append(torch.random.fork_rng(cuda))
    found += no_autocast(devices)
    if any(isinstance(module, nn.RNNBase) for module in modules):
        found.append(torch.backends.cudnn.flags(enabled=False))  # cuDNN has no backward pass in evaluation mode
    if wrappers := [module for module in modules if isinstance(module, DistributedDataParallel)]:
        found.append(_bypass_ddp(wrappers))
    return found


def no_autocast(devices: Iterable[torch.device]) -> list[AbstractContextManager[Any]]:
    """Return the contexts that disable autocast, under which products are rounded to half precision."""
    kinds = {device.type for device in devices}
    return [torch.autocast(kind, enabled=False) for kind in kinds if torch.is_autocast_enabled(kind)]


@contextmanager
def _restore_attributes(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of the modules after the block, and the members of their lists and dictionaries."""
    owns = [vars(module) for module in model.modules()]
    plain = {id(value): value for own in owns for value in own.values() if type(value) in (list, dict)}
    kept = [(container, container.copy()) for container in (*owns, *plain.values())]
    try:
        yield
    finally:
        for container, before in kept:
            _restore_members(container, before)


def _restore_members(container: dict[str, Any] | list[Any], before: Any) -> None:
    """Restore the members of a dictionary or list, unless they are the same."""
    if isinstance(container, list):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container[:] = before
    elif list(container) != list(before) or any(container[key] is not value for key, value in before.items()):
        container.clear()
        container.update(before)


@contextmanager
def _restore_values(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the values of tensors that the block has changed in place."""
    kept = [
        (local(t), local(t).detach().clone())
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
def _bypass_ddp(wrappers: Sequence[DistributedDataParallel]) -> Iterator[None]:
    """Call the module inside DistributedDataParallel directly, because DDP would wait for the other ranks."""
    try:
        for wrapper in wrappers:
            vars(wrapper)["forward"] = wrapper.module.__call__
        yield
    finally:
        for wrapper in wrappers:
            vars(wrapper).pop("forward", None)
