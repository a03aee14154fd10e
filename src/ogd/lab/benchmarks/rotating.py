"""Rotated: the images turned by a fixed angle per task (section 4.2 of the paper)."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ogd.checks import ArgumentError
from ogd.lab import data
from ogd.lab.benchmarks.rules import angle_name, resolve_angles
from ogd.lab.benchmarks.task import Benchmark, Task, images


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images (n, …, height, width) counter-clockwise about their centre: bilinear, zeros from outside.

    Output pixel p takes the value at c + R(p − c), c the centre and R the inverse rotation.
    """
    if images.ndim < 3 or not images.is_floating_point():
        raise ArgumentError(
            "images", f"must be (n, …, height, width) of floats, not {tuple(images.shape)} of {images.dtype}"
        )
    if not math.isfinite(degrees):
        raise ArgumentError("degrees", f"must be a finite number, not {degrees}")
    if degrees % 360 == 0:
        return images
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # affine_grid scales both axes to [−1, 1]: the off-diagonal terms carry the aspect ratio
    theta = torch.tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]], dtype=images.dtype)
    grid = F.affine_grid(theta[None], [1, 1, height, width], align_corners=False)
    flat = images.reshape(1, -1, height, width)  # every image a channel of one
    return F.grid_sample(flat, grid, mode="bilinear", padding_mode="zeros", align_corners=False).view(images.shape)


def rotated(
    tasks: int | None = None,
    *,
    angles: Sequence[float] | None = None,
    scale: str = "unit",
    left_out: int = 0,
    dataset: data.Dataset | None = None,
) -> Benchmark:
    """Make Rotated MNIST: task t turns every image by `angles[t]` degrees (0, 10, 20, … if not given), once.

    `scale` and `left_out` are those of `permuted`.

    Examples:
        >>> rotated(angles=[0, 45])
        Benchmark(rotated: 0°, 45°; 784 inputs, 10 outputs)
    """
    angles = resolve_angles(tasks, angles)
    dataset = dataset or data.load()
    made = [
        Task(angle_name(angle), *images(dataset, scale, left_out, partial(rotate, degrees=angle))) for angle in angles
    ]
    return Benchmark("rotated", tuple(made), max(dataset.classes) + 1)
