"""Which of a model's parameters are protected: those chosen by name that are trainable, now or later."""

from collections.abc import Iterable

from torch import Tensor, nn


class Parameters:
    """A model's protected parameters by name; `wanted` are names or prefixes of names, None for all."""

    def __init__(self, model: nn.Module, wanted: Iterable[str | nn.Parameter] | None):
        self.model = model
        self.wanted = None if wanted is None else self._names(wanted)

    def __contains__(self, name: str) -> bool:
        return self.wanted is None or any(name == w or name.startswith(f"{w}.") for w in self.wanted)

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad and name in self}

    def among(self, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        """Those of the tensors which are protected parameters."""
        ids = {id(t) for t in tensors}
        return {name: p for name, p in self.model.named_parameters() if id(p) in ids and name in self}

    def _names(self, wanted: Iterable[str | nn.Parameter]) -> list[str]:
        if isinstance(wanted, str | Tensor) or not isinstance(wanted, Iterable):
            raise TypeError(f"params must be a list of names, prefixes or parameters, not one {type(wanted).__name__}")
        known = dict(self.model.named_parameters())
        by_id = {id(p): name for name, p in known.items()}
        names = [by_id.get(id(w)) if isinstance(w, Tensor) else w for w in wanted]
        if not names:
            raise ValueError("params is empty: leave it out to protect every trainable parameter")
        for name in names:
            modules = dict(self.model.named_modules())
            if name is None:
                raise ValueError("params holds a tensor that is not a parameter of the model")
            if not name or (name not in known and name not in modules):
                raise ValueError(f"params: the model has no parameter or module {name!r}; it has {list(known)}")
        return [name for name in names if name is not None]
