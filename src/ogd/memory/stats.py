"""The results of `stats`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GradientStats:
    """How much of the updates projection keeps, the free dimensions, and the drift of remembered outputs.

    Args:
        kept: the share |P u| / |u| of the last update that its projection kept, for each protection; 1 is all of it.
        directions: the number of stored directions.
        rank: the number of independent directions; None above 5,000 directions. A softness uses up fewer dimensions.
        capacity: the number of weights that are protected and trainable.
        drift: for each task, the root mean square of G (w − w*), the first-order change of its remembered outputs, in
            their own units. Projection keeps it at zero, or near zero with a softness. After large steps outputs have
            moved more; measure them with `ogd.forgetting`. In a loaded memory the drift counts from the time of
            loading.
    """

    kept: tuple[float, ...]
    directions: int
    rank: int | None
    capacity: int
    drift: tuple[float, ...]

    @property
    def left(self) -> float:
        """The share of the dimensions in which the weights may still move freely."""
        used = self.directions if self.rank is None else self.rank
        return max(1 - used / self.capacity, 0.0) if self.capacity else 0.0


@dataclass(frozen=True)
class ExampleStats:
    """The drift of remembered outputs, the loss of the last rehearsal, and how often the bound acted.

    Args:
        examples: the number of kept examples.
        drift: for each task, the root mean square change of its remembered outputs, in their own units; in a memory
            with loss= and without outputs=, the change of the loss of its items, which is positive if it has risen.
        loss: the remembered loss per example of the last rehearsal of each protection; None before the first.
        bounded: the share of rehearsals in which the bound reduced what was added, for each protection; None before
            the first.
    """

    examples: int
    drift: tuple[float, ...]
    loss: tuple[float | None, ...]
    bounded: tuple[float | None, ...]
