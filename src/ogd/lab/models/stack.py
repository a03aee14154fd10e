"""The contract of the laboratory: R networks of one shape, side by side, every parameter with a leading axis R.

The loop, the methods and the evaluation know a stack only by this. `StackedMLP` keeps to it by hand and fast;
`StackedModules` keeps to it for any `nn.Module` with `torch.func`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ogd.checks import ArgumentError, is_whole
from ogd.lab.benchmarks.batches import Batch
from ogd.lab.models.gradient import Gradient
from ogd.memory.blocks.pieces import Piece


class Stack:
    """R networks: run r of the stack is the same network whoever trains beside it.

    What a backward pass needs of its forward pass is the tape. Only the stack that made it can read it.
    """

    runs: tuple[int, ...]  # the number of each run
    params: Mapping[str, Tensor]  # (R, …), under the names they have in `module(run)`

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.params.values())).dtype

    def passing(self, x: Tensor) -> tuple[Any, Tensor]:
        """Return the tape and the logits (R, B, C) of inputs (R, B, …)."""
        raise NotImplementedError

    def backward(self, tape: Any, delta: Tensor) -> Gradient:
        """Return the gradient of a loss whose gradient with respect to the logits is `delta` (R, B, C)."""
        raise NotImplementedError

    def squares(self, tape: Any, delta: Tensor) -> list[Tensor]:
        """Return the mean over examples of the squared gradient of each one's loss, a tensor per parameter."""
        raise NotImplementedError

    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Return the logits (R, B, C) of inputs (B, …) that all runs see, each in its own order `columns` (R, d)."""
        raise NotImplementedError

    def output_gradients(self, batch: Batch, outputs: str, classes: tuple[int, ...] | None) -> tuple[list[Piece], int]:
        """Return the gradients of chosen outputs of each example as the rows of G, and how many rows there are."""
        raise NotImplementedError

    def module(self, run: int) -> nn.Module:
        """Return one run as an ordinary module, a copy."""
        raise NotImplementedError

    def gradient(self, batch: Batch) -> Gradient:
        """Return the gradient of the cross-entropy on a batch, averaged over its examples, each under its own head."""
        tape, z = self.passing(batch.x)
        return self.backward(tape, loss_gradient(z, batch.target, batch.head))

    def index(self, run: int) -> int:
        """Return where in the stack a run is."""
        if run not in self.runs:
            raise ArgumentError("run", f"{run} is not in this stack of runs {self.runs}")
        return self.runs.index(run)


def run_numbers(runs: int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of the runs, given their count or the numbers themselves.

    Examples:
        >>> run_numbers(3), run_numbers([4, 2])
        ((0, 1, 2), (4, 2))
    """
    numbers = tuple(range(runs)) if isinstance(runs, int) else tuple(runs)
    if not numbers or not all(is_whole(run) for run in numbers):
        raise ArgumentError("runs", f"give how many, at least one, or the numbers of some runs, from 0; not {runs!r}")
    return numbers


def loss_gradient(logits: Tensor, target: Tensor, head: Tensor | None) -> Tensor:
    """Return the gradient of the softmax cross-entropy, averaged over a batch, with respect to the logits (R, B, C).

    It is (softmax(z + head) − y) / B, where `head` is −∞ outside the task's classes.
    """
    z = logits if head is None else logits + head
    return z.softmax(-1).sub_(target).div_(logits.shape[1])
