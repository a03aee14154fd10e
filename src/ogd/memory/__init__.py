"""What is remembered and how it protects: the heart of ogd. It imports nothing of the laboratory."""

from ogd.long_work import LongWork
from ogd.memory.blocks.block import Block
from ogd.memory.blocks.convolved import Convolved
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.pieces import Piece
from ogd.memory.blocks.sparse import Sparse
from ogd.memory.blocks.stacking import stacked
from ogd.memory.budget import BudgetExceeded
from ogd.memory.gradients.explain import Explanation
from ogd.memory.gradients.gather import output_gradients
from ogd.memory.gradients.layers import register_layer
from ogd.memory.memory import Memory
from ogd.memory.protection.protection import Protection
from ogd.memory.protection.rehearsal import Rehearsal
from ogd.memory.protection.stats import Stats
from ogd.memory.rehearsal.memory import ExampleMemory

__all__ = [
    "Block",
    "BudgetExceeded",
    "Convolved",
    "Dense",
    "ExampleMemory",
    "Explanation",
    "Factored",
    "LongWork",
    "Memory",
    "Piece",
    "Protection",
    "Rehearsal",
    "Sparse",
    "Stats",
    "output_gradients",
    "register_layer",
    "stacked",
]
