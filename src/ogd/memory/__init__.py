"""The library: memories, and how they protect a model. It imports nothing of the laboratory."""

from ogd.long_work import LongWork
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.convolved import Convolved
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.pieces import Piece
from ogd.memory.blocks.sparse import Sparse
from ogd.memory.blocks.stacking import stacked
from ogd.memory.data.budget import BudgetExceeded
from ogd.memory.example_memory import ExampleMemory
from ogd.memory.explanation import Explanation
from ogd.memory.gradient_memory import GradientMemory
from ogd.memory.gradients.layers import register_layer
from ogd.memory.loading import load
from ogd.memory.memory import Memory
from ogd.memory.optimizers.projection_hooks import Projection
from ogd.memory.optimizers.rehearsal_hooks import Rehearsal
from ogd.memory.optimizers.step_hooks import Protection
from ogd.memory.output_gradients import output_gradients
from ogd.memory.stats import ExampleStats, GradientStats

__all__ = [
    "Block",
    "BudgetExceeded",
    "Convolved",
    "Dense",
    "ExampleMemory",
    "ExampleStats",
    "Explanation",
    "Factored",
    "GradientMemory",
    "GradientStats",
    "LongWork",
    "Memory",
    "Piece",
    "Projection",
    "Protection",
    "Rehearsal",
    "Sparse",
    "load",
    "output_gradients",
    "register_layer",
    "stacked",
]
