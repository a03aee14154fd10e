"""The contract between the one loop and the methods: hooks that do nothing by default."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ogd.benchmarks import Task
from ogd.methods.penalty import Quadratic
from ogd.models import Factors, StackedMLP


class Network(Protocol):
    """What computes a step: the stack itself, or something that stands in for it."""

    def activations(self, x: Tensor) -> tuple[list[Tensor], Tensor]: ...

    def backward(self, inputs: list[Tensor], delta: Tensor) -> Factors: ...


class Method:
    """How a method differs from SGD; a subclass overrides only its difference.

    A step of the loop is

        g = transform(∂L/∂w)               L the loss on a batch drawn from examples(tasks seen)
        w ← w − η (g + ∂penalty/∂w)        with momentum where it is asked for
        after_step()

    `begin` is called before the first task, `end_task` once a task is learned, and `settle` or `settled` before
    anything reads the weights. During the first task every method must do what SGD does: it is trained once for all.

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

    def begin(self, model: StackedMLP, seed: int) -> None:
        """Forget everything and start anew with this stack; draws of run r come from (seed, r, purpose)."""

    def examples(self, seen: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks whose training examples batches are drawn from; `seen` ends with the present one."""
        return seen[-1:]

    def network(self, model: StackedMLP) -> Network:
        """Return what computes the steps of a task."""
        return model

    def foresee(self, x: Tensor) -> None:
        """Look at the inputs (R, steps · B, d) of the coming steps, which `activations` will be given in order."""

    def transform(self, gradient: Factors, model: StackedMLP) -> Factors:
        """Return the gradient to use in place of the batch's."""
        return gradient

    def penalty(self) -> Quadratic | None:
        """Return what is added to the loss."""
        return None

    def after_step(self, model: StackedMLP, lr: float, momentum: float) -> None:
        """Correct what a step did."""

    def settle(self, model: StackedMLP) -> None:
        """Bring the weights up to date; called at the end of every epoch."""

    def settled(self, model: StackedMLP) -> StackedMLP:
        """Return a stack whose weights are up to date, and leave this one as it is."""
        return model

    def skip(self, steps: int) -> None:
        """Go on as if so many steps had been taken since the last `end_task`: a killed training is taken up again.

        For that, what `end_task` keeps may depend on nothing but the weights and draws from (seed, run, purpose).
        """

    def end_task(self, model: StackedMLP, task: Task, columns: Tensor | None) -> None:
        """Keep what the method keeps of a finished task; `columns` is each run's order of the inputs, or None."""
