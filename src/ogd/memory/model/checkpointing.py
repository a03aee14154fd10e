"""Keep Hugging Face's gradient checkpointing in a forward pass in evaluation mode.

Its layers checkpoint only while their flag `training` is set. The flag is set around each call of such a layer and
cleared inside, before the layer's own forward, so that no dropout acts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def checkpointing(model: nn.Module) -> Iterator[None]:
    """Let the layers that checkpoint in training do so in this block, in which the model is in evaluation mode.

    A backward pass that follows belongs into the block too: it calls the layers again.
    """
    layers: list[Any] = [
        module
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) is True and hasattr(module, "_gradient_checkpointing_func")
    ]
    functions = [layer._gradient_checkpointing_func for layer in layers]
    found: list[Any] = [getattr(layer, "config", None) for layer in layers]
    configs = {id(config): config for config in found if getattr(config, "use_cache", False)}
    handles: list[Any] = []
    try:
        for config in configs.values():
            config.use_cache = False  # a cache would grow again when a layer is called again
        for layer, function in zip(layers, functions, strict=True):
            if isinstance(function, partial) and function.keywords.get("use_reentrant", True):
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # for autograd.grad
            handles.append(layer.register_forward_pre_hook(_clear_flag))
            handles.append(layer.register_forward_hook(_set_flag, always_call=True))
            layer.training = True
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, function in zip(layers, functions, strict=True):
            layer._gradient_checkpointing_func, layer.training = function, False
        for config in configs.values():
            config.use_cache = True


def _clear_flag(layer: nn.Module, *_: Any) -> None:
    layer.training = False


def _set_flag(layer: nn.Module, *_: Any) -> None:
    layer.training = True
