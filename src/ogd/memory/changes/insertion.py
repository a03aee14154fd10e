"""Parameters that were added after `remember` and change remembered outputs, as in adapters (LoRA) or inserted layers.

No remembered output depends on a new head next to the remembered layers, so a new head may change freely. But a new
parameter inside a wrapped layer, or in a layer inserted into a `Sequential`, changes remembered outputs, and their
gradients with respect to it are not stored.
"""

import itertools
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ogd.memory.model.parameters import Parameters, plain_names


def check_insertions(parameters: Parameters, moved: Mapping[str, str], known: Iterable[Tensor]) -> None:
    """Raise a ValueError if a trainable parameter was inserted around a stored name `s`, which is `moved[s]` now."""
    ids = {id(t) for t in known}
    new = [name for name, p in parameters.trainable().items() if id(p) not in ids]
    plain = plain_names(parameters.model)
    kinds = {plain[name]: type(module) for name, module in parameters.model.named_modules()}
    renamed = {s: c for s, c in moved.items() if s != c}
    caught = {n: (s, c) for n in new for s, c in reversed(renamed.items()) if _is_inserted(n, s, c, kinds)}
    if caught:
        s, c = next(iter(caught.values()))
        raise ValueError(
            f"{', '.join(caught)}: added since the last `remember` to layers that remembered outputs pass through "
            f"({s} is now {c}), and have no stored gradients, so training them would change those outputs. Change the "
            "model before `remember`, or forget the tasks (memory.forget) and remember them again, or choose the "
            "protected parameters with params="
        )


def _is_inserted(new: str, s: str, c: str, kinds: Mapping[str, type[nn.Module]]) -> bool:
    """Return whether `new` is in the module that wraps the layer of s, or in the chain in which its number changed.

    Members of a `ModuleList` or `ModuleDict` are independent of one another, for example an old head and a new one.
    """
    before, after = s.rpartition(".")[0], c.rpartition(".")[0]
    wrapped = before != "" and after.startswith(f"{before}.")
    chain = _common(before, after)
    place = before if wrapped else chain
    inside = place == "" or new.startswith(f"{place}.")
    beside = kinds[_common(new, c)] in (nn.ModuleList, nn.ModuleDict)
    return inside and not beside and (wrapped or kinds[chain] is nn.Sequential)


def _common(one: str, other: str) -> str:
    """Return the path that two names have in common."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.split("."), other.split("."), strict=False))
    return ".".join(part for part, _ in same)
