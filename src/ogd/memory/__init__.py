"""What is remembered and how it protects: the heart of ogd. Imports nothing else of ours."""

from ogd.memory.blocks import Block, Dense, Factored
from ogd.memory.budget import BudgetExceeded
from ogd.memory.layers import register_layer
from ogd.memory.memory import Memory
from ogd.memory.protect import Protection

__all__ = ["Block", "BudgetExceeded", "Dense", "Factored", "Memory", "Protection", "register_layer"]
