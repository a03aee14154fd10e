"""The modules and parameters of a model, found in fewer instructions than PyTorch's own iterators take.

Rehearsal asks for them every few steps, when nothing of this is in the processor's cache.
"""

from collections.abc import Iterator

from torch import Tensor, nn


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Every module once, level by level, as a list; `model.modules()` goes branch by branch.

    Examples:
        >>> relu = nn.ReLU()
        >>> [type(module).__name__ for module in modules_of(nn.Sequential(relu, nn.Linear(1, 1), relu))]
        ['Sequential', 'ReLU', 'Linear']
    """
    found, seen = [model], {id(model)}
    for module in found:  # which grows on the way
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def parameters_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters in the order of `model.parameters()`; shared ones come again. For those who want the first."""
    for p in model._parameters.values():
        if p is not None:
            yield p
    for child in model._modules.values():
        if child is not None:
            yield from parameters_of(child)
