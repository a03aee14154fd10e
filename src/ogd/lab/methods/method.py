"""The contract between the one loop and the methods: hooks that do nothing by default."""

from collections.abc import Sequence

from ogd.lab.benchmarks import Task
from ogd.lab.methods.constraint import Constraint
from ogd.lab.methods.finished import Finished
from ogd.lab.models.gradient import Gradient
from ogd.lab.models.stack import Stack
from ogd.lab.optimizers import Optimizer, Quadratic


class Method:
    """How a method differs from SGD; a subclass overrides only its difference.

    A step of the loop is

        g = transform(∂L/∂w)               L the loss on a batch drawn from examples(tasks seen)
        w ← w − η (g + ∂penalty/∂w)        or what the optimizer makes of that gradient

    `begin` is called before the first task, `end_task` when a task has been learned. During the first task every method
    must do what SGD does: it is trained once for all. What a method keeps may depend on nothing but the weights that
    tasks ended with and on draws from (seed, run, purpose), so that an interrupted training can resume by calling
    `end_task` with each of them.

    Examples:
        >>> class LastTwo(Method):
        ...     "Keep the data of one finished task, and train on both."
        ...     name = "last two"
        ...     def examples(self, seen):
        ...         return seen[-2:]
    """

    name = "method"

    def __repr__(self) -> str:
        return self.name

    def begin(self, model: Stack, seed: int) -> None:
        """Forget everything and start anew with this stack; draws of run r come from (seed, r, purpose)."""

    def examples(self, seen: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks whose training examples batches are drawn from; `seen` ends with the present one."""
        return seen[-1:]

    def transform(self, gradient: Gradient, model: Stack, step: int) -> Gradient:
        """Return the gradient to use in place of the batch's; `step` counts since training began."""
        return gradient

    def penalty(self) -> Quadratic | None:
        """Return what is added to the loss."""
        return None

    def constraint(self, optimizer: Optimizer) -> Constraint:
        """Return what is done around the steps of the coming task, which `optimizer` takes."""
        return Constraint(optimizer.model)

    def end_task(self, finished: Finished) -> None:
        """Keep what the method keeps of a finished task."""
