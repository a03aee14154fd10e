"""The one loop → an accuracy matrix and curves."""

from ogd.training.loop import Diverged, Result, train

__all__ = ["Diverged", "Result", "train"]
