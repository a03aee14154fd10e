"""Gradients example by example, for parameters whose gradients do not factor or failed a check."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ogd.memory.data.batches import CHUNK_BYTES, length, take
from ogd.memory.gradients.outputs import ChosenOutputs
from ogd.memory.gradients.summed_gradients import summed_gradients
from ogd.memory.model.parameters import replace_parameters
from ogd.memory.ranks.sharded_parameters import is_sharded, reshard, whole


def per_example(chosen: ChosenOutputs, params: Mapping[str, Tensor], x: Any, y: Any, k: int) -> dict[str, Tensor]:
    """Return the gradients (B·k, p) of each parameter, with each example alone in its batch."""
    if is_sharded(chosen.model):
        return _loop_of_shards(chosen, params, x, y)

    def alone(weights: dict[str, Tensor], x: Any, y: Any) -> Tensor:
        one = pytree.tree_map(lambda t: t.unsqueeze(0) if isinstance(t, Tensor) else t, (x, y))
        with replace_parameters(chosen, {id(params[name]): w for name, w in weights.items()}):
            f: Tensor = chosen(*one)
        return f.squeeze(0)

    weights = {name: p.detach() for name, p in params.items()}
    size = k * sum(p.numel() * p.element_size() for p in params.values())
    jacobian = torch.func.vmap(
        torch.func.jacrev(alone),
        in_dims=(None, 0, None if y is None else 0),
        randomness="different",
        chunk_size=max(CHUNK_BYTES // max(size, 1), 1),
    )
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.simplefilter("error")  # vmap warns if it would loop over the examples in each operation
            rows = jacobian(weights, x, y)  # (B, k, ...)
    except Exception:  # the loop raises the model's own errors again
        return _loop(chosen, params, x, y)
    return {name: G.detach().flatten(0, 1).reshape(-1, params[name].numel()) for name, G in rows.items()}


def _loop(chosen: ChosenOutputs, params: Mapping[str, Tensor], x: Any, y: Any) -> dict[str, Tensor]:
    rows: list[Sequence[Tensor]] = []
    for i in range(length((x, y))):
        f = chosen(take(x, slice(i, i + 1)), take(y, slice(i, i + 1)))
        rows += [
            torch.autograd.grad(value, list(params.values()), retain_graph=True, materialize_grads=True)
            for value in f.flatten()
        ]
    columns = zip(*rows, strict=True)
    return {name: torch.stack([_flat(g) for g in c]) for name, c in zip(params, columns, strict=True)}


def _loop_of_shards(chosen: ChosenOutputs, params: Mapping[str, Tensor], x: Any, y: Any) -> dict[str, Tensor]:
    """Do the same by `backward`, after which FSDP has the gradients. All ranks have the same examples. Collective."""
    reshard(chosen.model)
    named = dict(chosen.model.named_parameters())
    shards = [named[name] for name in params]
    rows: list[list[Tensor]] = []
    for i in range(length((x, y))):
        f = chosen(take(x, slice(i, i + 1)), take(y, slice(i, i + 1)))
        for value in f.flatten() / dist.get_world_size():
            found = summed_gradients(chosen.model, value, shards, retain_graph=True)
            rows.append(
                [_flat(whole(torch.zeros_like(p) if g is None else g)) for p, g in zip(shards, found, strict=True)]
            )
    columns = zip(*rows, strict=True)
    return {name: torch.stack(c) for name, c in zip(params, columns, strict=True)}


def _flat(g: Tensor) -> Tensor:
    return (g.to_dense() if g.is_sparse else g).flatten()
