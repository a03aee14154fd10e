"""Check that a model can be remembered."""

import sys
from collections.abc import Mapping

from torch import Tensor, nn
from torch.jit import ScriptModule


def check_parameters(model: nn.Module) -> None:
    """Raise if parameters have no values yet, or if FSDP has cut them into shards.

    FSDP is looked up only if it is imported already.
    """
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_meta:
            raise ValueError(
                f"model: {name} is on the meta device, without values: give it values first, by "
                'model.to_empty(device="cpu") and model.load_state_dict(...)'
            )
    tensor, fsdp = sys.modules.get("torch.distributed.tensor"), sys.modules.get("torch.distributed.fsdp")
    cut = [name for name, p in model.named_parameters() if tensor is not None and isinstance(p, tensor.DTensor)]
    if fsdp is not None:
        cut += [f"{name}.*" for name, m in model.named_modules() if isinstance(m, fsdp.FullyShardedDataParallel)]
    if cut:
        raise ValueError(
            f"FSDP keeps only a shard of {cut[0]!r} on this rank ({len(cut)} such parameters or modules), and a memory "
            "needs whole gradients. Use DistributedDataParallel instead; to save memory there, "
            "ZeroRedundancyOptimizer divides the optimizer's state among the ranks, and sharded=True the stored "
            "gradients"
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
