"""Which parameters the autograd graph of the outputs uses, how often, and whether it shows all gradients."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ogd.memory.ranks.sharded_parameters import is_shard, is_sharded


def nodes_of(f: Tensor) -> Iterator[Any]:
    """Yield every node of the graph of f once."""
    seen, queue = {f.grad_fn}, [f.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None:
            yield node
            new = {after for after, _ in node.next_functions if after is not None} - seen
            seen |= new
            queue += new


def count_uses(f: Tensor) -> Counter[int]:
    """Count the operations in the graph of f that use each leaf, by the id of the leaf."""
    leaves = (getattr(after, "variable", None) for node in nodes_of(f) for after, _ in node.next_functions)
    return Counter(id(leaf) for leaf in leaves if leaf is not None)


def depends_on(f: Tensor, params: Mapping[str, Tensor]) -> bool:
    """Return whether any of the parameters is in the graph of f."""
    if any(map(is_shard, params.values())):  # the graph holds the whole parameters in their place
        return f.requires_grad
    uses = count_uses(f)
    return any(uses[id(p)] for p in params.values())


def check_visible(f: Tensor, model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if backward() computes gradients that the graph does not show.

    Only a node written in Python can do so, by differentiating something else inside its backward.
    """
    written = {type(node).__name__ for node in nodes_of(f) if isinstance(node, FunctionCtx)}
    if is_sharded(model):
        if written := written - {"RegisterPostBackwardFunctionBackward"}:  # this one is FSDP's
            raise ValueError(
                f"the model uses an autograd.Function of its own ({', '.join(written)}), and with fully_shard nothing "
                "shows whether its gradients can be computed per example: use an ExampleMemory"
            )
        return
    if not written:
        return
    with without_gradients(model):
        f.sum().backward(retain_graph=True)
        real = [p.grad for p in params.values()]
    shown: Sequence[Tensor | None]
    try:
        shown = torch.autograd.grad(f.sum(), list(params.values()), retain_graph=True, allow_unused=True)
    except RuntimeError:  # from reentrant checkpointing; any other error was raised by backward()
        shown = [None] * len(real)
    hidden = [name for name, r, s in zip(params, real, shown, strict=True) if r is not None and not _same(r, s)]
    if hidden:
        raise ValueError(
            f"gradients of {', '.join(hidden)} are hidden from the autograd graph, by reentrant checkpointing or "
            "another autograd.Function that differentiates inside its backward, so they cannot be computed per "
            "example: use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )


def _same(real: Tensor, shown: Tensor | None) -> bool:
    if shown is None:
        return False
    real, shown = (t.to_dense() if t.is_sparse else t for t in (real, shown))
    slack = torch.finfo(real.dtype).eps ** 0.5 * real.abs().amax() if real.numel() else real.sum()
    return bool(((real - shown).abs() <= slack).all() | ~real.isfinite().all())  # `check_finite` reports NaN


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Set gradients to None and disable their hooks inside the block, and restore both afterwards."""
    saved = [(p, p.grad, dict(p._post_accumulate_grad_hooks or {})) for p in model.parameters()]
    try:
        for p, _, hooks in saved:
            p.grad = None
            if hooks:
                p._post_accumulate_grad_hooks.clear()  # in place, because autograd holds this dictionary
        yield
    finally:
        for p, grad, hooks in saved:
            p.grad = grad
            if hooks:
                p._post_accumulate_grad_hooks.update(hooks)
