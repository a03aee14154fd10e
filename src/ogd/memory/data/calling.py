"""Call a model with a batch's x, as model(x), model(*x) or model(**x), and find the logits in the result."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ogd.memory.data.batches import LABELS, clone_tensors, describe
from ogd.memory.data.packed_texts import as_one_row, has_packed_texts, without_cache
from ogd.memory.model.parameters import first_parameter, unwrap

Logits = Callable[[nn.Module, Any], Tensor]

_CASTABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ONE_BY_ONE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ScoredModel(nn.Module):
    """A model with the way to compute its logits, and the logits that belong to a task.

    `logits` is a function (model, x) → z; None for the model's own. `classes` are the logits of the task; None for all.
    """

    def __init__(self, model: nn.Module, logits: Logits | None, classes: Sequence[int] | None = None):
        super().__init__()
        self.model = unwrap(model) if logits is None else model
        self.logits = logits
        self.classes = None if classes is None else [int(c) for c in classes]

    def scores(self, x: Any) -> Tensor:
        """Return all logits of a batch, (B, ...), without letting the model change the batch in place."""
        return scores(self.model, clone_tensors(x), self.logits)


def scores(model: nn.Module, x: Any, logits: Logits | None) -> Tensor:
    """Return all logits of a batch, computed in the model's dtype."""
    x = cast_inputs(x, model)
    if logits is not None or not has_packed_texts(x):
        return logits_of(call_model(model, x) if logits is None else logits(model, x))
    z = logits_of(call_model(model, as_one_row(x)))  # (1, B · T, C)
    return z.reshape(*x["position_ids"].shape, -1)


def call_model(model: nn.Module, x: Any) -> Any:
    """Return model(x); pass a dict by keywords, and a tuple or list part by part, if the arguments of forward allow it.

    A part is passed only to an argument without default, or with the default None: any other default is not a tensor.

    Examples:
        >>> class Two(nn.Module):
        ...     def forward(self, a, b=None):
        ...         return a + b
        >>> one = torch.ones(1)
        >>> call_model(Two(), (one, one)), call_model(Two(), {"a": one, "b": one}), call_model(nn.ReLU(), -one)
        (tensor([2.]), tensor([2.]), tensor([0.]))
    """
    if isinstance(x, Tensor):
        return model(x)
    arguments = _arguments(model)
    if isinstance(x, Mapping):
        x = without_cache(model, x)
        return model(**x) if _by_keywords(arguments, x) else model(x)
    if isinstance(x, tuple | list):
        return model(*x) if _one_by_one(arguments, len(x)) else model(x)
    return model(x)


def as_inputs(model: nn.Module, data: object) -> object:
    """Return (x, None) in place of a dict x of tensors without labels, as tokenizers give, if the model takes its keys.

    Examples:
        >>> class Reader(nn.Module):
        ...     def forward(self, ids, mask=None):
        ...         return ids
        >>> as_inputs(Reader(), {"ids": torch.ones(1)}), as_inputs(Reader(), {"x": 1})
        (({'ids': tensor([1.])}, None), {'x': 1})
    """
    if not isinstance(data, Mapping) or not data or not all(isinstance(value, Tensor) for value in data.values()):
        return data
    unlabelled = not any(key in data for key in LABELS) and all(accepts_argument(model, key) for key in data)
    return (dict(data), None) if unlabelled else data


def accepts_argument(model: nn.Module, name: str) -> bool:
    """Return whether the model's forward takes an argument of this name, or of any name."""
    return any(a.name == name or a.kind is a.VAR_KEYWORD for a in _arguments(model))


def logits_of(result: Any) -> Tensor:
    """Return the logits in a model's result: the result itself, its `.logits` or its ["logits"].

    Examples:
        >>> logits_of({"logits": torch.ones(2)})
        tensor([1., 1.])
    """
    inside = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    f = result if isinstance(result, Tensor) else inside
    if not isinstance(f, Tensor):
        raise TypeError(
            f"the model returned {describe(result)}, neither a tensor nor something with .logits: give logits=, "
            "a function (model, x) → tensor, or ogd.ExampleMemory(model, loss=…) (docs/any-loss.md)"
        )
    return f


def cast_inputs(x: Any, model: nn.Module) -> Any:
    """Return x with its floating-point tensors in the dtype of the model's first parameter.

    Examples:
        >>> cast_inputs({"a": torch.ones(1), "b": torch.tensor([1])}, nn.Linear(1, 1).bfloat16())
        {'a': tensor([1.], dtype=torch.bfloat16), 'b': tensor([1])}
    """
    first = first_parameter(model)
    dtype = None if first is None else first.dtype
    if dtype not in _CASTABLE:  # quantised weights may come first
        dtype = next((p.dtype for p in model.parameters() if p.dtype in _CASTABLE), None)
    if dtype is None or (isinstance(x, Tensor) and x.dtype == dtype):
        return x
    return pytree.tree_map(lambda t: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t, x)


def _arguments(model: nn.Module) -> list[inspect.Parameter]:
    forward = unwrap(model).forward
    function = getattr(forward, "__func__", None)  # a method of the class has one function for all its calls
    return _arguments_of(forward) if function is None else _known_arguments(function)[1:]


@lru_cache
def _known_arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return _arguments_of(function)


def _arguments_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a scripted module shows no signature
        return []


def _by_keywords(arguments: list[inspect.Parameter], x: Mapping[str, Any]) -> bool:
    named = {a.name for a in arguments if a.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, a.KEYWORD_ONLY)}
    unknown = [key for key in x if key not in named]
    required = [a for a in arguments if a.kind in _ONE_BY_ONE and a.default is a.empty]
    if any(a.kind is a.VAR_KEYWORD for a in arguments):
        return len(unknown) < len(x) or not required
    if unknown and len(unknown) < len(x):
        raise TypeError(
            f"x is {describe(x)}, but the model's forward takes {', '.join(a.name for a in arguments)}: leave "
            f"{', '.join(map(str, unknown))} out of the batches, or give logits=, a function (model, x) → tensor"
        )
    return not unknown


def _one_by_one(arguments: list[inspect.Parameter], n: int) -> bool:
    if any(a.kind is a.VAR_POSITIONAL for a in arguments):
        return True
    places = [a for a in arguments if a.kind in _ONE_BY_ONE]
    required = sum(a.default is a.empty for a in places)
    return required <= n <= len(places) and all(a.default in (a.empty, None) for a in places[:n])
