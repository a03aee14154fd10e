"""The one loop → an accuracy matrix and curves."""

from ogd.training.loop import Diverged, FirstTask, Result, first_task, train

__all__ = ["Diverged", "FirstTask", "Result", "first_task", "train"]
