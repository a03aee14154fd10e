"""What `stats` of each memory returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GradientStats:
    """What projection does to the updates, the room that is left, and how far remembered outputs have moved.

    Args:
        kept: the share |P u| / |u| of the last update that its projection left, for each protection; 1 is all of it.
        directions: the number of stored directions.
        rank: the number of independent ones among them; None above 5,000 directions.
        capacity: the number of weights that are protected and trainable.
        drift: for each task, the root mean square change of its remembered outputs since, in the outputs' own units:
            G (w − w*), what projection keeps at zero. After large steps outputs have moved more than it says; measure
            them with `ogd.forgetting`. In a memory that was loaded it counts from then on.
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
    """How far remembered outputs have moved, and the loss of the last rehearsal.

    Args:
        examples: the number of kept examples.
        drift: for each task, the root mean square change of its remembered outputs since, in the outputs' own units.
        loss: the remembered loss per example of the last rehearsal of each protection; None before the first.
    """

    examples: int
    drift: tuple[float, ...]
    loss: tuple[float | None, ...]
