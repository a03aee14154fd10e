"""The modules and parameters of a model, found in fewer instructions than PyTorch's own iterators take.

Rehearsal asks for them every few steps, when nothing of this is in the processor's cache.
"""

from collections.abc import Iterator

from torch import Tensor, nn


def modules_of(model: nn.Module) -> Iterator[nn.Module]:
    """`model.modules()`, in the same order: parents first, each once.

    Examples:
        >>> relu = nn.ReLU()
        >>> [type(module).__name__ for module in modules_of(nn.Sequential(relu, nn.Linear(1, 1), relu))]
        ['Sequential', 'ReLU', 'Linear']
    """
    if type(model).modules is not nn.Module.modules:
        yield from model.modules()
        return
    waiting, seen = [model], set()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module
        if type(module).named_modules is not nn.Module.named_modules:  # it says itself what is in it
            inside = [child for _, child in module.named_modules() if child is not module]
        else:
            inside = [child for child in module._modules.values() if child is not None]
        waiting.extend(reversed(inside))


def first_parameter(model: nn.Module) -> Tensor | None:
    """The first of `model.parameters()`; None without any."""
    kind = type(model)
    if kind.parameters is not nn.Module.parameters or kind.named_parameters is not nn.Module.named_parameters:
        return next(iter(model.parameters()), None)
    for module in modules_of(model):
        for p in module._parameters.values():
            if p is not None:
                return p
    return None
