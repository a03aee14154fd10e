"""The one loop → an accuracy matrix and curves."""

from ogd.lab.records.request import Schedule
from ogd.lab.training.checkpoint import Checkpoint, History
from ogd.lab.training.evaluation import Result
from ogd.lab.training.loop import Diverged
from ogd.lab.training.train import first_task, train

__all__ = ["Checkpoint", "Diverged", "History", "Result", "Schedule", "first_task", "train"]
