"""Networks as stacks of runs: the paper's perceptron, a convolutional network, or any module of yours."""

from ogd.models.build import build
from ogd.models.cnn import cnn
from ogd.models.gradient import DenseGradient, FactoredGradient, Gradient
from ogd.models.loss import loss_gradient
from ogd.models.mlp import PAPER, StackedMLP, mlp
from ogd.models.modules import StackedModules
from ogd.models.stack import Stack

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
