"""The one loop → an accuracy matrix and curves."""

from ogd.training.loop import Diverged, FirstTask, Result, first_task, train
from ogd.training.schedule import Schedule

__all__ = ["Diverged", "FirstTask", "Result", "Schedule", "first_task", "train"]
