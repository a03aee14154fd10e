"""OGD: Orthogonal Gradient Descent, the paper's Algorithm 1, for a stack of runs.

At the end of a task the gradients of some outputs are stored: the true class's logit of each example (GTL), the mean
logit (AVE) or every logit (ALL) of the task's head. They are the rows of G, and from then on the weights move only by
P Δw, P = I − Gᵀ K⁺ G, K = G Gᵀ. Each run has its own G; store and projector are those of `ogd.Memory`.
"""

from dataclasses import replace

from ogd import catalogue
from ogd.catalogue.methods import CHOOSE, EVERY, OUTPUTS, PER_TASK
from ogd.memory.algebra.projector import projector_of
from ogd.memory.algebra.store import Store
from ogd.methods.constraint import Constraint
from ogd.methods.explicit import Explicit
from ogd.methods.finished import Finished
from ogd.methods.implicit import Implicit
from ogd.methods.method import Method
from ogd.models.mlp import StackedMLP
from ogd.models.stack import Stack
from ogd.optimizers import Optimizer
from ogd.optimizers.sgd import SGD


class OGD(Method):
    """Store `per_task` gradients of each task, of the `outputs` "true" (GTL), "mean" (AVE) or "all" (ALL).

    `projection="implicit"` is exact at every step and forms nothing of the size of G; it needs the perceptron and SGD.
    `"explicit"` replaces the displacement since the last projection by its projection, every `every` steps. None takes
    the implicit one wherever it can be had.

    Examples:
        >>> OGD(per_task=100, outputs="all").every
        1
    """

    name = "ogd"

    def __init__(
        self,
        per_task: int = PER_TASK.default,
        outputs: str = OUTPUTS.default,
        projection: str | None = None,
        every: int = EVERY.default,
        choose: str = CHOOSE.default,
    ) -> None:
        catalogue.check_options("ogd", per_task=per_task, outputs=outputs, every=every, choose=choose)
        if projection is not None:
            catalogue.check_options("ogd", projection=projection)
        if projection == "implicit" and every != 1:
            raise ValueError(f"every: {every} needs projection 'explicit'; 'implicit' projects every step")
        self.per_task, self.outputs, self.projection, self.every = per_task, outputs, projection, every
        self.choose = choose

    def begin(self, model: Stack, seed: int) -> None:
        self.store = Store()

    def end_task(self, finished: Finished) -> None:
        task, model = finished.task, finished.model
        width = len(task.classes or range(finished.outputs)) if self.outputs == "all" else 1
        if self.per_task < width:
            raise ValueError(f"per_task: {self.per_task} gradients cannot hold all {width} logits of one example")
        batch = finished.draw(self.per_task // width, self.choose)
        new, rows = model.output_gradients(batch, self.outputs, task.classes)
        shapes = {name: w.shape for name, w in model.params.items()}
        self.store = self.store.grown([replace(piece, start=len(self.store)) for piece in new], rows, shapes)
        self.store.gram(shapes)  # task by task, so that a training taken up again has the same bits

    def constraint(self, optimizer: Optimizer) -> Constraint:
        model = optimizer.model
        projector = projector_of(self.store, {name: w.detach() for name, w in model.params.items()})
        if projector is None:
            return Constraint(model)
        if self.projection == "explicit" or self.every > 1:
            return Explicit(optimizer, projector, self.every)
        if isinstance(model, StackedMLP) and isinstance(optimizer, SGD):
            return Implicit(optimizer, projector)
        if self.projection == "implicit":
            raise ValueError("projection: 'implicit' needs a StackedMLP and the optimizer sgd; use 'explicit'")
        return Explicit(optimizer, projector, self.every)
