"""Networks as stacks of runs: the paper's perceptron, a convolutional network, or any module of yours."""

from ogd.lab.models.build import build, cnn
from ogd.lab.models.gradient import DenseGradient, FactoredGradient, Gradient
from ogd.lab.models.mlp import PAPER, StackedMLP, mlp
from ogd.lab.models.modules import StackedModules
from ogd.lab.models.stack import Stack, loss_gradient

__all__ = [
    "PAPER",
    "DenseGradient",
    "FactoredGradient",
    "Gradient",
    "Stack",
    "StackedMLP",
    "StackedModules",
    "build",
    "cnn",
    "loss_gradient",
    "mlp",
]
