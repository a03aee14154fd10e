"""Plain names: a parameter is called as in the model itself, whatever `torch.compile` or DDP has put around it."""

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

_PRIVATE = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # nobody else has such names
_WRAPPING = _PRIVATE | {"module"}
_WRAPPERS = (DistributedDataParallel, DataParallel, AveragedModel)  # hold the model as `module`, as others might too


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DDP and the like.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> unwrapped(nn.DataParallel(model)) is model
        True
    """
    for name in _WRAPPING.intersection(model._modules.keys()):
        child = model._modules[name]
        if child is not None and _wraps(model, name):
            return unwrapped(child)
    return model


def plain_names(model: nn.Module) -> dict[str, str]:
    """The plain name of every parameter, buffer and module, by the name that PyTorch gives it.

    Examples:
        >>> plain_names(nn.DataParallel(nn.Linear(2, 1)))
        {'': '', 'module': '', 'module.weight': 'weight', 'module.bias': 'bias'}
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    plain = {"": ""}
    for name in modules:
        if name:
            parent, _, leaf = name.rpartition(".")
            plain[name] = plain[parent] if _wraps(modules[parent], leaf) else _joined(plain[parent], leaf)
    for name, module in modules.items():
        for leaf in (*module._parameters.keys(), *module._buffers.keys()):  # scripted modules have only keys()
            plain[_joined(name, leaf)] = _joined(plain[name], leaf)
    return plain


def _wraps(parent: nn.Module, leaf: str) -> bool:
    return leaf in _PRIVATE or (leaf == "module" and isinstance(parent, _WRAPPERS))


def _joined(parent: str, leaf: str) -> str:
    return f"{parent}.{leaf}" if parent else leaf
