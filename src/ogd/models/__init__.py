"""The paper's networks, stacked and single."""

from ogd.models.stack import PAPER, Factors, StackedMLP, mlp

__all__ = ["PAPER", "Factors", "StackedMLP", "mlp"]
