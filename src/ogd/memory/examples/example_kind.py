"""What an example is: a pair (x, y) with the model's outputs, or an item of any data set with a loss of the user's own.

An `ExampleMemory` has one kind of example. It decides when a batch is rehearsed, and its kind how.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch.distributed as dist
from torch import Generator, Tensor, nn

from ogd.memory.data.calling import Logits
from ogd.memory.examples.kept_examples import Batch, Examples
from ogd.memory.examples.kept_items import Items
from ogd.memory.ranks.sharded_parameters import is_sharded

K = TypeVar("K", Examples, Items)  # what is kept
B = TypeVar("B", Batch, Tensor)  # a part of a batch: the examples, or the numbers of items


@dataclass(frozen=True)
class NewTask:
    """A task to remember: the arguments of `remember`."""

    data: object
    count: int | None
    generator: Generator
    choose: str = "uniform"
    merge: int = 1
    classes: Sequence[int] | None = None
    logits: Logits | None = None
    shared: bool = False  # whether several ranks share the memory


class DrawnBatch(NamedTuple):
    """A batch to rehearse, by its number among those that the seed draws, and the weights of its two terms."""

    seed: int
    number: int
    size: int
    alpha: float
    labels: bool
    shared: bool  # whether several ranks share the batch

    @property
    def rank(self) -> int:
        """This process among those that share the batch."""
        return dist.get_rank() if self.shared else 0


class ExampleKind(ABC, Generic[K, B]):
    """A kind of example of a model.

    Attributes:
        model: the model.
        sampled: how many examples of a task show whether its outputs have moved.
    """

    sampled: ClassVar[int] = 16

    def __init__(self, model: nn.Module):
        self.model = model

    @abstractmethod
    def empty(self) -> K:
        """Return no examples."""

    def check_task(self, new: NewTask) -> None:
        """Raise if an argument of `remember` is not for this kind."""

    @abstractmethod
    def with_task(self, kept: K, new: NewTask, params: Mapping[str, Tensor]) -> K:
        """Return the kept examples and those of a new task, with the model's outputs. Collective if shared.

        If there are any parameters, the outputs or the loss must depend on one of them.
        """

    def measured(self, kept: K, params: Mapping[str, Tensor]) -> K:
        """Return the kept examples with what must be measured once it is known which of the last task stay."""
        return kept

    @abstractmethod
    def sample(self, new: NewTask, params: Mapping[str, Tensor]) -> K:
        """Return some examples as `with_task` would keep them, to be explained."""

    def check_weights(self, alpha: float, labels: bool) -> None:
        """Raise if alpha or labels weighs a term that this kind does not have."""

    def moved(self, kept: K) -> K:
        """Return the kept examples on the device where they are needed."""
        return kept

    @abstractmethod
    def parts(self, kept: K, drawn: DrawnBatch) -> Sequence[B]:
        """Return this rank's part of a batch, divided into parts that go through the model at once; it may be empty.

        All ranks of a sharded model get all of the batch, because all must call the model equally often; `loss` divides
        each part.
        """

    def micro_batches(self, part: B, numbers: int | None) -> Sequence[B]:
        """Divide a part so that no input has more numbers than the largest of a training batch; None: unknown."""
        return [part]

    def loss(self, kept: K, part: B, drawn: DrawnBatch) -> Tensor:
        """Return the summed remembered loss of a part; of a sharded model, of this rank's share of it.

        A rank without a share computes that of another times 0.
        """
        if not is_sharded(self.model):
            return self._loss(kept, part, drawn)
        shares, r = part.split(-(-len(part) // dist.get_world_size())), dist.get_rank()
        loss = self._loss(kept, shares[min(r, len(shares) - 1)], drawn)
        return loss if r < len(shares) else 0 * loss

    @abstractmethod
    def _loss(self, kept: K, part: B, drawn: DrawnBatch) -> Tensor: ...

    @abstractmethod
    def reference_losses(self, kept: K, alpha: float, labels: bool) -> tuple[float, float]:
        """Return the remembered loss per example at the remembered outputs, and that of constant outputs."""

    @abstractmethod
    def change(self, kept: K, rows: Tensor) -> tuple[float, float]:
        """Return the root mean square of the change of some examples' outputs, and of the outputs; or of the loss."""

    @abstractmethod
    def check_fits(self, kept: K) -> None:
        """Raise a ValueError unless the model accepts some of the kept examples of each task or form."""

    @abstractmethod
    def state(self, kept: K) -> dict[str, Any]:
        """Return the kept examples as JSON values, and tensors under "tensors"."""

    @abstractmethod
    def from_state(self, stored: Mapping[str, Any]) -> K:
        """Return the kept examples of a state, or raise a ValueError that names the damage."""

    def options(self, kept: K) -> dict[str, Any]:
        """Return the options that only this kind has as JSON values; a function becomes True."""
        return {}


def own_rows(rows: Tensor, shared: bool) -> Tensor:
    """Return this rank's part of the rows of a batch."""
    return rows[dist.get_rank() :: dist.get_world_size()] if shared else rows
