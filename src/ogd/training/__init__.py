"""The one loop → an accuracy matrix and curves."""

from ogd.records.schedule import Schedule
from ogd.training.checkpoint import Checkpoint, Snapshot
from ogd.training.loop import Diverged, first_task, train
from ogd.training.result import Result

__all__ = ["Checkpoint", "Diverged", "Result", "Schedule", "Snapshot", "first_task", "train"]
