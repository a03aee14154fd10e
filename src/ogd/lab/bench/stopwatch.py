"""Timing side by side: everybody's turn comes in every round, so that a busy moment of the machine hits all."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ogd.lab.records.speed import Ratio

Contestant = Callable[[], float]  # does its work and returns the seconds that one unit of it took


@dataclass(frozen=True)
class Times:
    """Seconds per unit, one number for each round."""

    rounds: dict[str, list[float]]

    def ratio(self, key: str, over: str, under: str, meaning: str) -> Ratio:
        """Return the median over rounds of one contestant's time over another's in the same round."""
        ratios = [a / b for a, b in zip(self.rounds[over], self.rounds[under], strict=True)]
        return Ratio(key, statistics.median(ratios), min(ratios), max(ratios), meaning)


def side_by_side(
    contestants: Mapping[str, Contestant], rounds: int, tick: Callable[[str], None] = lambda name: None, turns: int = 1
) -> Times:
    """Time everybody in every round, after a round that does not count: the mean of so many turns, in alternation."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        taken = dict.fromkeys(contestants, 0.0)
        for _ in range(turns):
            for name, run in contestants.items():
                taken[name] += run() / turns
                tick(name)
        for name, seconds in taken.items() if number else ():
            times[name].append(seconds)
    return Times(times)
