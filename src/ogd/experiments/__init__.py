"""The paper, what it leaves open and public leaderboards as data, and what runs them."""

from ogd.experiments.beyond import BEYOND
from ogd.experiments.boards import BOARDS
from ogd.experiments.experiment import Cell, Drawing, Experiment, Reference, Row, quick
from ogd.experiments.memories import MEMORIES
from ogd.experiments.paper import PAPER
from ogd.experiments.registry import EXPERIMENTS, register
from ogd.experiments.resolve import resolve

for _experiment in (*PAPER, *BEYOND, *MEMORIES, *BOARDS):
    register(_experiment)

__all__ = ["EXPERIMENTS", "Cell", "Drawing", "Experiment", "Reference", "Row", "quick", "register", "resolve"]
