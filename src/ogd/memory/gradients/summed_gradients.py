"""Gradients of the ranks' summed loss, for a model that FSDP2 divides."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ogd.memory.gradients.autograd_graph import without_gradients
from ogd.memory.ranks.collective import sum_over_ranks
from ogd.memory.ranks.sharded_parameters import gradient_divisors, is_shard, reshard


def summed_gradients(
    model: nn.Module, loss: Tensor, params: Sequence[Tensor], *, retain_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients of the sum of all ranks' losses, divided like the parameters. Collective.

    FSDP reduces gradients only in `backward`, which adds them to `.grad`: what is there is set aside meanwhile. It
    divides their sum, mostly by the number of ranks, and this is undone.
    """
    reshard(model)  # so that its parameters are those with the gradients
    divisors = gradient_divisors(model)
    with without_gradients(model):
        loss.backward(retain_graph=retain_graph)
        found = [p.grad for p in params]
    ignored = [i for i, p in enumerate(params) if not is_shard(p)]  # by FSDP, which leaves each rank its gradient
    sums = [None if g is None or i in ignored else g * divisors[id(params[i])] for i, g in enumerate(found)]
    if ignored:
        own = (torch.zeros_like(params[i]) if (g := found[i]) is None else g.to_dense() for i in ignored)
        for i, g in zip(ignored, sum_over_ranks(*own), strict=True):
            sums[i] = g
    return sums
