"""The paper and what it leaves open as data, and what runs it."""

from ogd.experiments.experiment import Experiment, quick
from ogd.experiments.ours import OURS
from ogd.experiments.paper import PAPER
from ogd.experiments.resolve import resolve

EXPERIMENTS = {experiment.name: experiment for experiment in (*PAPER, *OURS)}

__all__ = ["EXPERIMENTS", "Experiment", "quick", "resolve"]
