"""Which of a model's parameters are protected: those chosen by name that are trainable, now or later."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ogd.memory.model.names import plain_names


class Parameters:
    """A model's protected parameters by their plain names; `wanted` are names or prefixes of names, None for all."""

    def __init__(self, model: nn.Module, wanted: Iterable[str | nn.Parameter] | None):
        self.model = model
        self.wanted = None if wanted is None else self._names(wanted)

    def __contains__(self, name: str) -> bool:
        return self.wanted is None or any(_under(name, w) for w in self.wanted)

    def named(self) -> dict[str, nn.Parameter]:
        """Every parameter of the model, protected or not."""
        plain = plain_names(self.model)
        return {plain[name]: p for name, p in self.model.named_parameters()}

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named().items() if p.requires_grad and name in self}

    def among(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """Those of the tensors which are protected parameters."""
        ids = {id(t) for t in tensors}
        return {name: p for name, p in self.named().items() if id(p) in ids and name in self}

    def follow(self, renamed: Mapping[str, list[str]]) -> None:
        """What is wanted stays wanted under its new names."""
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


@contextmanager
def substituted(model: nn.Module, values: Mapping[int, Tensor]) -> Iterator[None]:
    """Inside, the model computes with `values[id(p)]` in place of its parameters p.

    This is `torch.func.functional_call` for modules that are registered under several names as well.

    Examples:
        >>> model = nn.Linear(1, 1)
        >>> with substituted(model, {id(model.weight): model.bias}):
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


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
