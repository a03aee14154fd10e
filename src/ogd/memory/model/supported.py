"""Check that a model can be remembered."""

import sys
from collections.abc import Mapping

from torch import Tensor, nn
from torch.jit import ScriptModule

from ogd.memory.ranks.sharded_parameters import check_layout, reshard


def check_parameters(model: nn.Module) -> None:
    """Raise if parameters have no values yet, or are divided among the ranks in a way that a memory does not know.

    FSDP is looked up only if it is imported already.
    """
    reshard(model)
    params = dict(model.named_parameters())
    for name, p in params.items():
        if p.requires_grad and p.is_meta:
            raise ValueError(
                f"model: {name} is on the meta device, without values: give it values first, by "
                'model.to_empty(device="cpu") and model.load_state_dict(...)'
            )
        if hasattr(p, "ds_id"):
            raise ValueError(
                f"DeepSpeed's ZeRO-3 keeps only a part of {name!r} on this rank, in a form of its own: use "
                "fully_shard of torch.distributed.fsdp, ZeroRedundancyOptimizer of torch.distributed.optim, or DDP"
            )
    check_layout(params)
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for name, module in model.named_modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FullyShardedDataParallel):  # type: ignore[union-attr]
            raise ValueError(
                f"{name or 'the model'} is a FullyShardedDataParallel, which flattens the parameters of several layers "
                "into one: use its successor, fully_shard of torch.distributed.fsdp, or DistributedDataParallel"
            )


def check_model(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Raise unless some parameter is trainable and each example has a real gradient of its own."""
    if not params:
        raise ValueError("nothing to protect: no chosen parameter is trainable (requires_grad=True)")
    check_parameters(model)
    for name, p in model.named_parameters():
        if p.is_complex():
            raise ValueError(f"{name} is complex: only real parameters can be protected")
    for name, module in model.named_modules():
        if isinstance(module, ScriptModule) and (len(module._parameters) or len(module._buffers)):
            raise ValueError(
                f"{name or 'the model'} is a ScriptModule, whose inner calls no hook can see: train and remember the "
                "module that was scripted or traced, and script it afterwards"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{name or 'the model'} normalises by the batch in evaluation mode too, so no example has a "
                "gradient of its own: use track_running_stats=True"
            )
