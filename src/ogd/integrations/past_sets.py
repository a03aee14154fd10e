"""Evaluate a Hugging Face Trainer on data sets of the past, and log how much of them it has forgotten."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ogd.integrations.guard import random_state


class PastSets:
    """Data sets of finished tasks, on which a trainer is evaluated as on its own evaluation set.

    Args:
        trainer: a Trainer, or any of its subclasses.
        sets: the data sets by name, as the trainer's `eval_dataset` may be.
    """

    def __init__(self, trainer: Any, sets: Mapping[str, Any]):
        if not isinstance(sets, Mapping) or not all(isinstance(name, str) for name in sets):
            raise TypeError(f'past must be a dictionary such as {{"first": dataset}}, not {sets!r:.60}')
        self.trainer, self.sets = trainer, dict(sets)
        self._measuring = False

    def measure(self, metrics: dict[str, float] | None = None) -> None:
        """Evaluate on all sets, log `eval_NAME_forgetting` of each, and add what was found to some metrics.

        An evaluation that belongs to this one, or to another set than the first of several, is left out.
        """
        if self._measuring or not self.sets or (metrics is not None and not self._begins(metrics)):
            return
        with self._inside(), random_state():
            found = self.trainer.evaluate(self.sets)
            forgetting = {f"eval_{name}_forgetting": self._rise(name) for name in self.sets}
            self.trainer.log(dict(forgetting))
        if metrics is not None:
            metrics.update(found | forgetting)

    def is_measured(self) -> bool:
        """Return whether the sets were evaluated at the present step."""
        key, step = f"eval_{next(iter(self.sets), '')}_loss", self.trainer.state.global_step
        return any(key in entry and entry["step"] == step for entry in self.trainer.state.log_history)

    def _begins(self, metrics: Mapping[str, float]) -> bool:
        """Return whether these metrics are the first of an evaluation, which may be of several sets."""
        own = self.trainer.eval_dataset
        return not isinstance(own, Mapping) or f"eval_{next(iter(own))}_loss" in metrics

    def _rise(self, name: str) -> float:
        """Return the last logged loss on a set minus the first, which a checkpoint brings back with all logs."""
        losses = [e[key] for e in self.trainer.state.log_history if (key := f"eval_{name}_loss") in e]
        if not losses:
            raise ValueError(f"past: there is no loss on {name!r}: do its examples have labels?")
        return float(losses[-1] - losses[0])

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False
