"""The paper and what it leaves open as data, and what runs it."""

from ogd.experiments.beyond import BEYOND
from ogd.experiments.experiment import Cell, Drawing, Experiment, Row, quick
from ogd.experiments.paper import PAPER
from ogd.experiments.registry import EXPERIMENTS, register
from ogd.experiments.resolve import resolve

for _experiment in (*PAPER, *BEYOND):
    register(_experiment)

__all__ = ["EXPERIMENTS", "Cell", "Drawing", "Experiment", "Row", "quick", "register", "resolve"]
