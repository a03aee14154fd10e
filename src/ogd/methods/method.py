"""The contract between the one loop and the methods: hooks that do nothing by default."""

from collections.abc import Sequence

from torch import Tensor

from ogd.benchmarks import Task
from ogd.models import Factors, StackedMLP


class Method:
    """How a method differs from SGD; a subclass overrides only its difference.

    A step of the loop is

        g = transform(∂L/∂w)        L the loss on a batch drawn from examples(tasks seen)
        w ← w − η (g + penalty(w))

    and `end_task` is called once a task is learned.

    Examples:
        >>> class Forgetful(Method):
        ...     "Ridge regression towards zero."
        ...     name = "forgetful"
        ...     def penalty(self, model):
        ...         return [0.01 * w for w in model.parameters()]
    """

    name = "method"

    def examples(self, seen: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks whose training examples batches are drawn from; `seen` ends with the present one."""
        return seen[-1:]

    def transform(self, gradient: Factors, model: StackedMLP) -> Factors:
        """Return the gradient to use in place of the batch's."""
        return gradient

    def penalty(self, model: StackedMLP) -> list[Tensor] | None:
        """Return the gradient of what is added to the loss, one tensor a parameter of `model.parameters()`."""
        return None

    def end_task(self, model: StackedMLP, task: Task) -> None:
        """Keep what the method keeps of a finished task."""
