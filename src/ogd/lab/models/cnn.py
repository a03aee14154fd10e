"""A convolutional network of LeNet's size."""

from torch import nn

from ogd.lab.catalogue import LEAST_PIXELS


def cnn(
    shape: tuple[int, ...] = (1, 28, 28), outputs: int = 10, hidden: int = 100, *, biases: bool = True
) -> nn.Sequential:
    """Return two convolutions of 5 × 5 (6 and 16 maps), each followed by ReLU and pooling, and two linear layers.

    Examples:
        >>> sum(w.numel() for w in cnn().parameters())
        82082
    """
    least = LEAST_PIXELS["cnn"]
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(f"model: a cnn takes images (channels, height, width) from {least} × {least} on, not {shape}")
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2, bias=biases),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2, bias=biases),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), hidden, bias=biases),
        nn.ReLU(),
        nn.Linear(hidden, outputs, bias=biases),
    )
