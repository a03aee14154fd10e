"""The one loop → an accuracy matrix and curves."""

from ogd.lab.records.schedule import Schedule
from ogd.lab.training.checkpoint import Checkpoint
from ogd.lab.training.history import History
from ogd.lab.training.loop import Diverged
from ogd.lab.training.result import Result
from ogd.lab.training.train import first_task, train

__all__ = ["Checkpoint", "Diverged", "History", "Result", "Schedule", "first_task", "train"]
