"""OGD: Orthogonal Gradient Descent, the paper's Algorithm 1, for a stack of runs.

At the end of a task the gradients of some outputs are stored: the true class's logit of each example (GTL), the mean
logit (AVE) or every logit (ALL) of the task's head. They are the rows of G, and from then on the weights move only by
P Δw, P = I − Gᵀ K⁺ G, K = G Gᵀ. Each run has its own G; store and projector are those of `ogd.Memory`. With `refresh`
the examples are kept instead, and their gradients taken anew at the present weights.
"""

from dataclasses import replace

from torch import Tensor

from ogd import catalogue
from ogd.benchmarks.batch import Batch
from ogd.catalogue.methods import CHOOSE, EVERY, OUTPUTS, PER_TASK, REFRESH
from ogd.memory.algebra.projector import Projector, projector_of
from ogd.memory.algebra.store import Store
from ogd.methods.constraint import Constraint
from ogd.methods.explicit import Explicit
from ogd.methods.finished import Finished
from ogd.methods.implicit import Implicit
from ogd.methods.method import Method
from ogd.methods.renewed import Renewed
from ogd.models.mlp import StackedMLP
from ogd.models.stack import Stack
from ogd.optimizers import Optimizer
from ogd.optimizers.sgd import SGD

Classes = tuple[int, ...] | None


class OGD(Method):
    """Store `per_task` gradients of each task, of the `outputs` "true" (GTL), "mean" (AVE) or "all" (ALL).

    `projection="implicit"` is exact at every step and forms nothing of the size of G; it needs the perceptron and SGD.
    `"explicit"` replaces the displacement since the last projection by its projection, every `every` steps. None takes
    the implicit one wherever it can be had. With `refresh` the gradients are taken anew after so many steps; 0: never.

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
        refresh: int = REFRESH.default,
    ) -> None:
        given = {"per_task": per_task, "outputs": outputs, "every": every}
        catalogue.check_options("ogd", **given, choose=choose, refresh=refresh)
        if projection is not None:
            catalogue.check_options("ogd", projection=projection)
        if projection == "implicit" and every != 1:
            raise ValueError(f"every: {every} needs projection 'explicit'; 'implicit' projects every step")
        if projection == "implicit" and refresh:
            raise ValueError(f"refresh: {refresh} needs projection 'explicit'")
        self.per_task, self.outputs, self.projection, self.every = per_task, outputs, projection, every
        self.choose, self.refresh = choose, refresh

    def begin(self, model: Stack, seed: int) -> None:
        self.store = Store()
        self.kept: list[tuple[Batch, Classes]] = []

    def end_task(self, finished: Finished) -> None:
        task, model = finished.task, finished.model
        width = len(task.classes or range(finished.outputs)) if self.outputs == "all" else 1
        if self.per_task < width:
            raise ValueError(f"per_task: {self.per_task} gradients cannot hold all {width} logits of one example")
        batch = finished.draw(self.per_task // width, self.choose)
        if self.refresh:
            self.kept.append((batch, task.classes))
        else:
            self.store = self._grown(self.store, model, batch, task.classes)

    def constraint(self, optimizer: Optimizer) -> Constraint:
        model = optimizer.model
        if self.refresh and self.kept:
            return Renewed(optimizer, lambda: self._renewed(model), self.every, self.refresh)
        projector = projector_of(self.store, _weights(model))
        if projector is None:
            return Constraint(model)
        if self.projection == "explicit" or self.every > 1:
            return Explicit(optimizer, projector, self.every)
        if isinstance(model, StackedMLP) and isinstance(optimizer, SGD):
            return Implicit(optimizer, projector)
        if self.projection == "implicit":
            raise ValueError("projection: 'implicit' needs a StackedMLP and the optimizer sgd; use 'explicit'")
        return Explicit(optimizer, projector, self.every)

    def _grown(self, store: Store, model: Stack, batch: Batch, classes: Classes) -> Store:
        new, rows = model.output_gradients(batch, self.outputs, classes)
        shapes = {name: w.shape for name, w in model.params.items()}
        store = store.grown([replace(piece, start=len(store)) for piece in new], rows, shapes)
        store.gram(shapes)  # task by task, so that a training taken up again has the same bits
        return store

    def _renewed(self, model: Stack) -> Projector:
        """P from the gradients of the kept examples at the present weights."""
        store = Store()
        for batch, classes in self.kept:
            store = self._grown(store, model, batch, classes)
        projector = projector_of(store, _weights(model))
        assert projector is not None
        return projector


def _weights(model: Stack) -> dict[str, Tensor]:
    return {name: w.detach() for name, w in model.params.items()}
