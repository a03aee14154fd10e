"""The one loop → an accuracy matrix and curves."""

from ogd.records.schedule import Schedule
from ogd.training.checkpoint import Checkpoint
from ogd.training.history import History
from ogd.training.loop import Diverged
from ogd.training.result import Result
from ogd.training.train import first_task, train

__all__ = ["Checkpoint", "Diverged", "History", "Result", "Schedule", "first_task", "train"]
