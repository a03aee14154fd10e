"""Parameters that FSDP2 (`fully_shard`) divides among the ranks: each holds a shard, the local part of a DTensor.

Only this module knows DTensors. It looks them up only if they are imported already. A forward pass leaves the root's
parameters whole until the next backward pass; `reshard` makes every parameter a shard again.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ogd.memory.ranks.collective import sum_over_ranks


def is_shard(t: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which each rank holds a part."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(t, tensor.DTensor)


def is_cut_once(t: Tensor) -> bool:
    """Return whether a tensor is divided among all ranks, with no copies."""
    return is_shard(t) and t.device_mesh.ndim == 1  # type: ignore[attr-defined]


def local(t: Tensor) -> Tensor:
    """Return this rank's part of a tensor, which shares its memory; the tensor itself if it is not divided."""
    if not is_shard(t):
        return t
    with torch.no_grad():
        part: Tensor = t.to_local()  # type: ignore[attr-defined]
        return part


def local_parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's parts of some tensors."""
    return {name: local(t) for name, t in tensors.items()}


def whole(t: Tensor) -> Tensor:
    """Return a detached tensor with the parts of all ranks. Collective if it is divided."""
    return t.detach().full_tensor() if is_shard(t) else t.detach()  # type: ignore[attr-defined]


def sharded_class() -> Any:
    """Return the base class that `fully_shard` gives to a module; None if it cannot have been called."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)  # since PyTorch 2.6


def sharded_modules(model: nn.Module) -> list[Any]:
    """Return the modules to which `fully_shard` was applied."""
    kind = sharded_class() if dist.is_available() and dist.is_initialized() else None  # rehearsal asks at every step
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP2 divides some of the model's parameters."""
    return bool(sharded_modules(model))


def original_type(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, which `fully_shard` replaces by a subclass of its own."""
    kind = type(module)
    return kind.__bases__[-1] if sharded_class() in kind.__bases__ else kind


def reshard(model: nn.Module) -> None:
    """Free the whole parameters that a forward pass may have left, so that the model has its shards."""
    for module in sharded_modules(model):
        module.reshard()


def check_layout(params: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless each sharded parameter is divided once, along its first axis, among all ranks."""
    for name, p in params.items():
        if not is_shard(p):
            continue
        mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
        cuts = [placement for placement in placements if not placement.is_replicate()]
        if mesh.size() != dist.get_world_size() or len(cuts) != 1 or not cuts[0].is_shard(0):
            raise ValueError(
                f"{name} is divided as {placements} over {mesh.size()} of {dist.get_world_size()} ranks: a memory "
                "knows fully_shard along the first axis over all ranks (FSDP, or HSDP for an ExampleMemory), without "
                "tensor or pipeline parallelism"
            )


def norm_of_shards(tensors: Iterable[Tensor]) -> Tensor:
    """Return the joint Euclidean norm of tensors, some of which are divided among the ranks, float64. Collective."""
    return inner_product_of_shards((t, t) for t in tensors).sqrt()


def inner_product_of_shards(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of the inner products of pairs of tensors that are divided alike, float64. Collective."""
    products = [(local(g).to_dense().double() * local(a).to_dense().double()).sum() / _replicas(g) for g, a in pairs]
    return sum_over_ranks(torch.stack(products).sum())[0]


def cuts_of(t: Tensor) -> list[tuple[int, int]]:
    """Return which slices of a sharded tensor's first axis each rank holds, as `torch.chunk` divides them."""
    n, N = t.shape[0], dist.get_world_size()
    each = -(-n // N)
    return [(min(r * each, n), min((r + 1) * each, n)) for r in range(N)]


def whole_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the tensors that take the place of the sharded parameters in the graph, without their values. Collective.

    They are the same objects in every forward pass.
    """
    found: dict[str, nn.Parameter] = {}
    for module in sharded_modules(model):
        module.unshard()
        found |= {name: p for name, p in model.named_parameters() if not is_shard(p)}
        module.reshard()
    return found


def gradient_divisors(model: nn.Module) -> dict[int, float]:
    """Return the number by which FSDP divides the sum of the ranks' gradients, by the id of the parameter."""
    found = {}
    for group in _groups(model):
        if not group.reduce_grads:
            raise RuntimeError(
                "rehearsal needs gradients that FSDP reduces: call model.set_requires_gradient_sync(True) before the "
                "last backward pass of a step"
            )
        for each in group.fsdp_params:
            p = each.sharded_param
            found[id(p)] = float(group.gradient_divide_factor or p.device_mesh.size())
    return found


def _groups(model: nn.Module) -> Iterator[Any]:
    for module in sharded_modules(model):
        state = module._get_fsdp_state()
        several = getattr(state, "_fsdp_param_groups", None)  # before PyTorch 2.10 there was one
        one = getattr(state, "_fsdp_param_group", None) if several is None else None
        yield from several or [group for group in (one,) if group is not None]


def _replicas(t: Tensor) -> int:
    if not is_shard(t):
        return dist.get_world_size()
    pairs = enumerate(t.placements)  # type: ignore[attr-defined]
    sizes = [t.device_mesh.size(axis) for axis, p in pairs if p.is_replicate()]  # type: ignore[attr-defined]
    return int(torch.tensor(sizes).prod()) if sizes else 1
