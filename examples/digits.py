"""The examples' data: digits of MNIST, turned by an angle. MNIST travels with ogd; nothing is downloaded."""

import math

import torch
from torch.nn.functional import affine_grid, grid_sample

from ogd.data import load


def digits(angle, n, part="train"):
    """Return n images (n, 1, 28, 28) turned by `angle` degrees, and their labels (n,)."""
    mnist = load("mnist")
    images, labels = getattr(mnist, f"{part}_images")[:n], getattr(mnist, f"{part}_labels")[:n]
    x, y = torch.tensor(images).unsqueeze(1) / 255, torch.tensor(labels).long()
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(x), 2, 3)
    return grid_sample(x, affine_grid(turn, list(x.shape), align_corners=False), align_corners=False), y
