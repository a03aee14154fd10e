"""The paper, what it leaves open and public leaderboards as data, and what runs them."""

from ogd.lab.experiments.beyond import BEYOND
from ogd.lab.experiments.digits import DIGITS
from ogd.lab.experiments.experiment import EXPERIMENTS, Cell, Drawing, Experiment, Reference, Row, quick, register
from ogd.lab.experiments.gradients import GRADIENTS
from ogd.lab.experiments.leaderboards import BOARDS
from ogd.lab.experiments.memories import MEMORIES
from ogd.lab.experiments.paper import PAPER
from ogd.lab.experiments.resolve import resolve

for _experiment in (*PAPER, *BEYOND, *DIGITS, *MEMORIES, *GRADIENTS, *BOARDS):
    register(_experiment)

__all__ = ["EXPERIMENTS", "Cell", "Drawing", "Experiment", "Reference", "Row", "quick", "register", "resolve"]
