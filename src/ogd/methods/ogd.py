"""OGD: Orthogonal Gradient Descent, the paper's Algorithm 1, for a stack of runs.

At the end of a task the gradients of some outputs are stored: the true class's logit of each example (GTL), the mean
logit (AVE) or every logit (ALL) of the task's head. They are the rows of G, and from then on the weights move only by
P Δw, P = I − Gᵀ K⁺ G, K = G Gᵀ. Each run has its own G; blocks and projection are those of `ogd.memory`.
"""

import torch
from torch import Tensor

from ogd import catalogue
from ogd.benchmarks import Task
from ogd.benchmarks.batch import Batch, examples
from ogd.memory.blocks import Factored
from ogd.memory.pseudo_inverse import cutoff, extend, whitener
from ogd.methods.method import Method, Network
from ogd.methods.projecting import Explicit, Implicit
from ogd.models import StackedMLP
from ogd.seeds import draw


class OGD(Method):
    """Store `per_task` gradients per task, of the `outputs` "true" (GTL), "mean" (AVE) or "all" (ALL).

    `projection="implicit"` is exact at every step and forms nothing of the size of G; `"explicit"` replaces the
    displacement since the last projection by its projection, `every` so many steps.

    Examples:
        >>> OGD(per_task=100, outputs="all").projection
        'implicit'
    """

    name = "ogd"

    def __init__(
        self, per_task: int = 200, outputs: str = "true", projection: str = "implicit", every: int = 1
    ) -> None:
        catalogue.check_options("ogd", per_task=per_task, outputs=outputs, projection=projection, every=every)
        if projection == "implicit" and every != 1:
            raise ValueError(f"every: {every} needs projection 'explicit'; 'implicit' projects every step")
        self.per_task, self.outputs, self.projection, self.every = per_task, outputs, projection, every

    def begin(self, model: StackedMLP, seed: int) -> None:
        self.seed, self.tasks = seed, 0
        self.blocks: list[Factored] = []  # one a layer, A (R, n, in) and D (R, n, out)
        self.K = torch.empty(len(model.runs), 0, 0, dtype=torch.float64)  # (R, n, n)
        self.projecting: Implicit | Explicit | None = None

    def end_task(self, model: StackedMLP, task: Task, columns: Tensor | None) -> None:
        self.tasks += 1
        width = len(task.classes or range(model.sizes[-1])) if self.outputs == "all" else 1
        if self.per_task < width:
            raise ValueError(f"per_task: {self.per_task} gradients cannot hold all {width} logits of one example")
        index = draw(self.seed, model.runs, f"memory/{self.tasks}", len(task.train), self.per_task // width)
        batch = examples(task, index, columns, model.sizes[-1])
        new = logit_gradients(model, batch, task.classes, self.outputs)
        corner = _total([block.gram(block) for block in new])
        if self.blocks:
            cross = _total([a.gram(b) for a, b in zip(new, self.blocks, strict=True)])
            self.K = extend(self.K, cross, corner)
            new = [_joined(old, block) for old, block in zip(self.blocks, new, strict=True)]
        else:
            self.K = corner
        self.blocks = [block.laid_out() for block in new]

    def network(self, model: StackedMLP) -> Network:
        if not self.blocks:
            self.projecting = None
            return model
        dtype = model.layers[0][0].dtype
        W = whitener(self.K, cutoff(self.K.shape[-1], dtype)).to(dtype)  # (R, rank, n), K⁺ = Wᵀ W
        if self.projection == "explicit":
            self.projecting = Explicit(model, self.blocks, W, self.every)
            return model
        self.projecting = Implicit(model, self.blocks, W)
        return self.projecting

    def foresee(self, x: Tensor) -> None:
        if isinstance(self.projecting, Implicit):
            self.projecting.foresee(x)

    def after_step(self, model: StackedMLP, lr: float, momentum: float) -> None:
        if self.projecting is not None:
            self.projecting.after_step(lr, momentum)

    def settle(self, model: StackedMLP) -> None:
        if self.projecting is not None:
            self.projecting.settle()

    def settled(self, model: StackedMLP) -> StackedMLP:
        return model if self.projecting is None else self.projecting.settled()


def logit_gradients(model: StackedMLP, batch: Batch, classes: tuple[int, ...] | None, logits: str) -> list[Factored]:
    """Return the gradients of one logit, the mean logit or every logit of each example, a block a layer."""
    head = list(classes or range(model.sizes[-1]))
    inputs, z = model.activations(batch.x.to(model.layers[0][0].dtype))
    if logits == "true":
        delta = batch.target.to(z.dtype)
    elif logits == "mean":
        delta = torch.zeros_like(z)
        delta[..., head] = 1 / len(head)
    else:
        inputs = [a.repeat_interleave(len(head), 1) for a in inputs]
        delta = torch.eye(z.shape[-1], dtype=z.dtype)[head].repeat(z.shape[1], 1).expand(len(z), -1, -1).contiguous()
    return [Factored(a, d) for a, d in model.backward(inputs, delta)]


def _total(grams: list[Tensor]) -> Tensor:
    return torch.stack(grams).sum(0)


def _joined(old: Factored, new: Factored) -> Factored:
    joined = old.joined(new)
    assert joined is not None
    return joined
