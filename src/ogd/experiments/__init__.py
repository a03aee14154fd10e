"""The paper as data, and what runs it."""

from ogd.experiments.paper import EXPERIMENTS, Experiment, quick

__all__ = ["EXPERIMENTS", "Experiment", "quick"]
