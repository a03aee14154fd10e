"""Contestants at the size of real models: a ResNet-18 and a small transformer."""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ogd.lab.bench.stopwatch import Contestant
from ogd.memory import GradientMemory

DIRECTIONS, BATCH, EVERY = 200, 32, 50

# key, over, under, what is measured
RATIOS = [
    (
        "resnet_every_50_overhead",
        "resnet protected every 50",
        "resnet plain",
        "a ResNet-18 under protect(every=50) with 200 directions, batches of 32 images, against plain",
    ),
    (
        "resnet_first_step_over_backwards",
        "resnet first step",
        "resnet 200 backward passes",
        "the first protected step of a ResNet-18 with 200 directions, against 200 backward passes of one image",
    ),
]


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        around = [nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.around = nn.Sequential(*(around if stride > 1 or into != out else []))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.around(x))


def resnet18() -> nn.Module:
    """For images of 32 × 32: 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    into = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(into, out, stride), Residual(out, out, 1)]
        into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Transformer(nn.Module):
    """Two encoder layers, 256 wide, on sequences of words from 5,000: 2.9 million parameters."""

    def __init__(self, length: int = 64, words: int = 5_000, width: int = 256):
        super().__init__()
        self.embed, self.pos = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(self.embed(x) + self.pos).mean(1))
        return y


def images(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 32, 32), torch.randint(10, (n,))


def steps_of(model: nn.Module, count: int, every: int | None) -> Contestant:
    """Steps of the plain loop; with `every` one projection for `every` steps, whatever the count."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = images(BATCH)
    protection = None
    if every is not None:
        memory = GradientMemory(model, per_task=DIRECTIONS)
        memory.remember(images(DIRECTIONS))
        protection = memory.protect(optimizer, every)

    def run() -> float:
        began = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        each = (time.perf_counter() - began) / count
        if protection is None or every is None:
            return each
        began = time.perf_counter()
        protection.settle()
        return each + (time.perf_counter() - began) / every

    return run


def first_step(model: nn.Module) -> Contestant:
    """K, K⁺ and the first projection of `DIRECTIONS` directions, and the step itself."""
    memory = GradientMemory(model, per_task=DIRECTIONS)
    memory.remember(images(DIRECTIONS))
    x, y = images(BATCH)

    def run() -> float:
        memory.load_state_dict(memory.state_dict())  # K is not part of it
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        began = time.perf_counter()
        with memory.protect(optimizer):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return time.perf_counter() - began

    return run


def backwards(model: nn.Module) -> Contestant:
    x, y = images(DIRECTIONS)

    def run() -> float:
        began = time.perf_counter()
        for i in range(DIRECTIONS):
            model.zero_grad()
            model(x[i : i + 1])[0, y[i]].backward()
        return time.perf_counter() - began

    return run


def contestants() -> dict[str, Contestant]:
    """A unit is a step, or the first one, or `DIRECTIONS` backward passes in evaluation mode."""
    return {
        "resnet plain": steps_of(resnet18(), 3, None),
        "resnet protected every 50": steps_of(resnet18(), 3, EVERY),
        "resnet first step": first_step(resnet18()),
        "resnet 200 backward passes": backwards(resnet18().eval()),
    }
