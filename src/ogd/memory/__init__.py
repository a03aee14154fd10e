"""What is remembered and how it protects: the heart of ogd. Of ours it imports only `ogd.files` and `ogd.checks`."""

from ogd.memory.blocks import Block, Dense, Factored
from ogd.memory.budget import BudgetExceeded
from ogd.memory.explain import Explanation
from ogd.memory.gradients import output_gradients
from ogd.memory.layers import register_layer
from ogd.memory.memory import Memory
from ogd.memory.protect import Protection
from ogd.memory.sparse import Sparse
from ogd.memory.stacking import stacked
from ogd.memory.stats import Stats
from ogd.memory.store import Piece
from ogd.memory.work import LongWork

__all__ = [
    "Block",
    "BudgetExceeded",
    "Dense",
    "Explanation",
    "Factored",
    "LongWork",
    "Memory",
    "Piece",
    "Protection",
    "Sparse",
    "Stats",
    "output_gradients",
    "register_layer",
    "stacked",
]
