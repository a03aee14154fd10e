"""Find a model's parameters by their plain names, and which of them are protected.

A plain name is the name in the model itself, without the prefixes that `torch.compile` or DDP add.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from ogd.memory.ranks.sharded_parameters import reshard

_PRIVATE = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # no other module uses these names
_WRAPPING = _PRIVATE | {"module"}
_WRAPPERS = (
    DistributedDataParallel,
    DataParallel,
    AveragedModel,
)  # keep the model as `module`, a name that others may use too


class Parameters:
    """A model's protected parameters by their plain names; `wanted` are names or prefixes of names; None for all."""

    def __init__(self, model: nn.Module, wanted: Iterable[str | nn.Parameter] | None):
        self.model = model
        self.wanted = None if wanted is None else self._names(wanted)

    def __contains__(self, name: str) -> bool:
        return self.wanted is None or any(_under(name, w) for w in self.wanted)

    def named(self) -> dict[str, nn.Parameter]:
        """Return every parameter of the model, protected or not."""
        reshard(self.model)
        plain = plain_names(self.model)
        return {plain[name]: p for name, p in self.model.named_parameters()}

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named().items() if p.requires_grad and name in self}

    def among(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the tensors that are protected parameters, by name."""
        ids = {id(t) for t in tensors}
        return {name: p for name, p in self.named().items() if id(p) in ids and name in self}

    def follow(self, renamed: Mapping[str, list[str]]) -> None:
        """Rename the wanted parameters, given the new names of each renamed parameter."""
        for w in list(self.wanted or ()):
            moved = {old: new for old, new in renamed.items() if _under(old, w)}
            if all(_under(name, w) for new in moved.values() for name in new):
                continue
            self.wanted = [one for one in self.wanted or () if one != w] + [n for new in moved.values() for n in new]

    def _names(self, wanted: Iterable[str | nn.Parameter]) -> list[str]:
        if isinstance(wanted, str | Tensor) or not isinstance(wanted, Iterable):
            raise TypeError(f"params must be a list of names, prefixes or parameters, not one {type(wanted).__name__}")
        known = self.named()
        plain = plain_names(self.model)
        by_id = {id(p): name for name, p in known.items()}
        names = [by_id.get(id(w)) if isinstance(w, Tensor) else plain.get(w, w) for w in wanted]
        if not names:
            raise ValueError("params is empty: leave it out to protect every trainable parameter")
        modules = {plain[name] for name, _ in self.model.named_modules()}
        for name in names:
            if name is None:
                raise ValueError("params holds a tensor that is not a parameter of the model")
            if not name or (name not in known and name not in modules):
                raise ValueError(f"params: the model has no parameter or module {name!r}; it has {list(known)}")
        return [name for name in names if name is not None]


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, DDP and similar wrappers.

    Examples:
        >>> model = nn.Linear(2, 1)
        >>> unwrap(nn.DataParallel(model)) is model
        True
    """
    for name in _WRAPPING.intersection(model._modules.keys()):
        child = model._modules[name]
        if child is not None and _wraps(model, name):
            return unwrap(child)
    return model


def plain_names(model: nn.Module) -> dict[str, str]:
    """Return the plain name of every parameter, buffer and module, by the name that PyTorch gives it.

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


def first_parameter(model: nn.Module) -> Tensor | None:
    """Return the model's first parameter; None if it has none."""
    return next(model.parameters(), None)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter; the CPU if it has none."""
    first = first_parameter(model)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def replace_parameters(model: nn.Module, values: Mapping[int, Tensor]) -> Iterator[None]:
    """Let the model compute with `values[id(p)]` in place of its parameters p inside the block.

    Unlike `torch.func.functional_call` it also works if a module is registered under several names.

    Examples:
        >>> model = nn.Linear(1, 1)
        >>> with replace_parameters(model, {id(model.weight): model.bias}):
        ...     model.weight is model.bias
        True
        >>> model.weight is model.bias
        False
    """
    own = [(m._parameters, name, p) for m in model.modules() for name, p in m._parameters.items() if id(p) in values]
    try:
        for parameters, name, p in own:
            parameters[name] = values[id(p)]  # type: ignore[assignment]
        yield
    finally:
        for parameters, name, p in own:
            parameters[name] = p


def _wraps(parent: nn.Module, leaf: str) -> bool:
    return leaf in _PRIVATE or (leaf == "module" and isinstance(parent, _WRAPPERS))


def _joined(parent: str, leaf: str) -> str:
    return f"{parent}.{leaf}" if parent else leaf


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
