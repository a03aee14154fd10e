"""OGD: Orthogonal Gradient Descent, the paper's Algorithm 1, for a stack of runs.

At the end of a task the gradients of some outputs are stored: the true class's logit of each example (GTL), the mean
logit (AVE) or every logit (ALL) of the task's head. They are the rows of G, and from then on the weights move only by
P Δw, P = I − Gᵀ K⁺ G, K = G Gᵀ. Each run has its own G; store and projector are those of `ogd.GradientMemory`. With
`refresh` the examples are stored instead, and their gradients computed again at the present weights. With `directions`
the rows of G are chosen or combined from the gradients of more examples: `ogd.lab.methods.directions`. With a
`softness` μ > 0, one number or one per run, (K + μ diag K)⁻¹ takes the place of K⁺:
`ogd.memory.projection.pseudo_inverse`.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ogd.checks import ArgumentError
from ogd.lab import catalogue
from ogd.lab.benchmarks.batches import Batch
from ogd.lab.catalogue.methods import (
    CANDIDATES,
    CHOOSE,
    DIRECTIONS,
    EVERY,
    IN_TOTAL,
    OUTPUTS,
    PER_TASK,
    REFRESH,
    SOFTNESS,
    WRITTEN_OUT,
    choose_projection,
)
from ogd.lab.methods.directions import leading, leverage, sketch, spectrum
from ogd.lab.methods.explicit_projection import ExplicitProjection, RenewedProjection
from ogd.lab.methods.finished_task import FinishedTask, task_budgets
from ogd.lab.methods.implicit_projection import ImplicitProjection
from ogd.lab.methods.method import Constraint, Method, per_run, stack_values
from ogd.lab.models.mlp import StackedMLP
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import SGD, Optimizer
from ogd.memory.blocks.pieces import Piece
from ogd.memory.blocks.stacking import combine_rows
from ogd.memory.projection.projector import Projector, projector_of
from ogd.memory.projection.pseudo_inverse import SAFE
from ogd.memory.projection.store import Store

Classes = tuple[int, ...] | None


class OGD(Method):
    """Store `per_task` gradients of each task, of the `outputs` "true" (GTL), "mean" (AVE) or "all" (ALL).

    With `in_total` it stores so many of all tasks together instead; the share of each shrinks as tasks are added.

    `projection="implicit"` is exact at every step and forms nothing of the size of G; it needs the perceptron and SGD.
    `"explicit"` replaces the displacement since the last projection by its projection, every `every` steps. None takes
    the implicit one wherever it can be had. With `refresh` the gradients are taken anew after so many steps; 0: never.
    `directions` other than "drawn" come from the gradients of `candidates` outputs per task. "pca" and "sketch" are
    combinations of them, each as long as the model has weights, which the implicit projection cannot use.

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
        in_total: int = IN_TOTAL.default,
        directions: str = DIRECTIONS.default,
        candidates: int = CANDIDATES.default,
        softness: float | Sequence[float] = SOFTNESS.default,
    ) -> None:
        given = {"per_task": per_task, "outputs": outputs, "every": every, "choose": choose, "in_total": in_total}
        given |= {"refresh": refresh, "directions": directions, "candidates": candidates}
        catalogue.METHODS["ogd"].check(**given, **({} if projection is None else {"projection": projection}))
        choose_projection(projection, every=every, refresh=refresh, directions=directions)
        self.per_task, self.outputs, self.projection, self.every = per_task, outputs, projection, every
        self.choose, self.refresh, self.in_total = choose, refresh, in_total
        self.directions, self.candidates = directions, candidates
        values = per_run(SOFTNESS, softness)
        if len(values) > 1 and min(values) < SAFE:
            raise ArgumentError("softness", "0 is exact, so a stack whose runs have different values has none of 0")
        self.softness = values if len(values) > 1 else values[0]

    def begin(self, model: Stack, seed: int) -> None:
        if isinstance(self.softness, tuple):
            stack_values(SOFTNESS, self.softness, model)  # one per run
        self.store = Store()
        self.batches: list[tuple[Batch, Classes]] = []

    def end_task(self, finished: FinishedTask) -> None:
        self._complete(finished.model)
        classes = finished.task.classes
        width = self._width(classes, finished.outputs)
        shares = task_budgets(self.per_task, self.in_total, finished.number)
        if shares[-1] < width:
            which = "in_total" if self.in_total else "per_task"
            raise ArgumentError(which, f"{shares[-1]} gradients cannot hold all {width} logits of one example")
        if self.in_total and self.directions != "sketch":
            self._shrink(shares, finished.outputs)
        if self.directions != "drawn":
            self.store = self._add_directions(finished, shares[-1], width, sum(shares))
        else:
            batch = finished.draw(shares[-1] // width, self.choose)
            if self.refresh:
                self.batches.append((batch, classes))
            else:
                self.store = self._add_gradients(self.store, finished.model, batch, classes)

    def constraint(self, optimizer: Optimizer) -> Constraint:
        model = optimizer.model
        if self.refresh and self.batches:
            return RenewedProjection(optimizer, lambda: self._renew_projector(model), self.every, self.refresh)
        projector = projector_of(self.store, _weights(model), self.softness)
        if projector is None:
            return Constraint(model)
        if self.projection == "explicit" or self.every > 1 or self.directions in WRITTEN_OUT:
            return ExplicitProjection(optimizer, projector, self.every)
        if isinstance(model, StackedMLP) and isinstance(optimizer, SGD):
            return ImplicitProjection(optimizer, projector)
        if self.projection == "implicit":
            raise ArgumentError("projection", "'implicit' needs a StackedMLP and the optimizer sgd; use 'explicit'")
        return ExplicitProjection(optimizer, projector, self.every)

    def _complete(self, model: Stack) -> None:
        """Compute K and L of what is stored: task by task, so that a training that resumes has the same bits."""
        if len(self.store):
            self.store.gram(model.params)
            if self.softness:
                self.store.cholesky(model.params, self.softness)

    def _width(self, classes: Classes, outputs: int) -> int:
        """How many gradients an example has."""
        return len(classes or range(outputs)) if self.outputs == "all" else 1

    def _shrink(self, shares: Sequence[int], outputs: int) -> None:
        """Keep as much of each task as its share allows: the first of its gradients or examples."""
        rows = zip(self.store.tasks, self.store.rows_per_example, shares, strict=False)
        self.store = self.store.with_rows([range(min(n, share // each * each)) for n, each, share in rows])
        pairs = zip(self.batches, shares, strict=False)
        self.batches = [(next(batch.split(n // self._width(of, outputs))), of) for (batch, of), n in pairs]

    def _add_directions(self, finished: FinishedTask, share: int, width: int, in_all: int) -> Store:
        """The store with `share` directions of a task that are chosen or made from the gradients of its candidates."""
        model, classes = finished.model, finished.task.classes
        pool = finished.draw(max(self.candidates, share) // width, self.choose)
        new, rows = model.output_gradients(pool, self.outputs, classes)
        everything = _add_rows(self.store, new, rows, model)
        protected = 0 if self.directions == "sketch" else len(self.store)
        lam, V = spectrum(everything.gram(model.params), protected, model.dtype)
        if self.directions == "leverage":
            scores = leverage(lam, V, share).unflatten(-1, (-1, width)).sum(-1)  # of examples, (R, m)
            best = scores.topk(min(share // width, scores.shape[-1])).indices
            return self._add_gradients(self.store, model, pool.at(best), classes)
        if self.directions == "pca":
            C = leading(lam, V, share)
            return _add_rows(self.store, combine_rows(new, C, model.dtype), C.shape[-2], model)
        C = sketch(lam, V, in_all)
        return _add_rows(Store(), combine_rows(everything.pieces, C, model.dtype), C.shape[-2], model)

    def _add_gradients(self, store: Store, model: Stack, batch: Batch, classes: Classes) -> Store:
        new, rows = model.output_gradients(batch, self.outputs, classes)
        return _add_rows(store, new, rows, model, each=rows // batch.x.shape[1])

    def _renew_projector(self, model: Stack) -> Projector:
        """Return P from the gradients of the stored examples at the present weights."""
        store = Store()
        for batch, classes in self.batches:
            store = self._add_gradients(store, model, batch, classes)
            store.gram(model.params)  # task by task, as in `_complete`
        projector = projector_of(store, _weights(model), self.softness)
        assert projector is not None
        return projector


def _add_rows(store: Store, new: Sequence[Piece], rows: int, model: Stack, each: int = 1) -> Store:
    """The store with the rows of another task, `each` of an example."""
    shapes = {name: w.shape for name, w in model.params.items()}
    return store.with_task([replace(piece, start=len(store)) for piece in new], rows, shapes, each)


def _weights(model: Stack) -> dict[str, Tensor]:
    return {name: w.detach() for name, w in model.params.items()}
