"""The examples' data: digits of MNIST, turned by an angle. MNIST travels with ogd; nothing is downloaded."""

import torch

from ogd.lab.benchmarks import rotate
from ogd.lab.data import load


def digits(angle, n, part="train"):
    """Return n images (n, 1, 28, 28) turned by `angle` degrees, and their labels (n,)."""
    mnist = load("mnist")
    images, labels = getattr(mnist, f"{part}_images")[:n], getattr(mnist, f"{part}_labels")[:n]
    return rotate(torch.tensor(images).unsqueeze(1) / 255, angle), torch.tensor(labels).long()
