"""The one loop → an accuracy matrix and curves."""

from ogd.training.checkpoint import Checkpoint, Snapshot
from ogd.training.loop import Diverged, first_task, train
from ogd.training.result import Result
from ogd.training.schedule import Schedule

__all__ = ["Checkpoint", "Diverged", "Result", "Schedule", "Snapshot", "first_task", "train"]
