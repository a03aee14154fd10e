"""Parameters that came after `remember` and in the way of remembered outputs: adapters (LoRA), inserted layers.

A new head stands beside the remembered layers, and no remembered output depends on it: it is free to move. A
parameter inside a layer that was wrapped, or in a layer put between those of a `Sequential`, changes remembered
outputs, and no gradient of theirs with respect to it is stored.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ogd.memory.names import plain_names
from ogd.memory.parameters import Parameters


def check_newcomers(parameters: Parameters, moved: Mapping[str, str], known: Iterable[Tensor]) -> None:
    """Raise if a trainable parameter came where the stored name `s` was, which is `moved[s]` now."""
    ids = {id(t) for t in known}
    new = [name for name, p in parameters.trainable().items() if id(p) not in ids]
    plain = plain_names(parameters.model)
    chains = {plain[name] for name, m in parameters.model.named_modules() if type(m) is nn.Sequential}
    places = {place for s, c in moved.items() if s != c for place in _places(s, c, chains)}
    caught = sorted(name for name in new if any(not place or name.startswith(f"{place}.") for place in places))
    if caught:
        wrapped = next(f"{s} is now {c}" for s, c in moved.items() if s != c)
        raise ValueError(
            f"{', '.join(caught)}: came after the last `remember` into layers that remembered outputs pass through "
            f"({wrapped}), and have no stored gradients: training them would change those outputs. Change the model "
            "before `remember`; or forget the tasks (memory.forget) and remember them again; or choose what is "
            "protected by params="
        )


def _places(s: str, c: str, chains: set[str]) -> list[str]:
    """The module that was put around the layer of s, and the chain in which the layer got another number."""
    before, after = s.rpartition(".")[0], c.rpartition(".")[0]
    if before and after.startswith(f"{before}."):
        return [before]
    parts = zip(before.split("."), after.split("."), strict=False)
    common = []
    for one, other in parts:
        if one != other:
            break
        common.append(one)
    chain = ".".join(common)
    return [chain] if chain in chains else []
