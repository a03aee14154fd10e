"""A data set's images as examples: which ones, and on which scale."""

from collections.abc import Callable

from torch import Tensor

from ogd.checks import check_name
from ogd.lab import data
from ogd.lab.benchmarks.rules import check_left_out
from ogd.lab.benchmarks.task import Examples, labels, pixels
from ogd.lab.catalogue.benchmarks import SCALES


def images(
    dataset: data.Dataset, scale: str, left_out: int, change: Callable[[Tensor], Tensor] | None = None
) -> tuple[Examples, Examples]:
    """Return the examples to train and to test on, without the first `left_out` to train on.

    With `scale="unit"` pixels are between 0 and 1; with `"standard"` the training pixels have mean 0 and standard
    deviation 1. `change` comes before that, so that a rotation fills in black.
    """
    check_name("scale", scale, SCALES)
    check_left_out(left_out, dataset)
    train, test = pixels(dataset.train_images[left_out:]), pixels(dataset.test_images)
    mean, std = (float(train.mean()), float(train.std())) if scale == "standard" else (0.0, 1.0)

    def seen(x: Tensor) -> Tensor:
        x = x if change is None else change(x)
        return x if scale == "unit" else (x - mean) / std

    y_train, y_test = labels(dataset.train_labels[left_out:]), labels(dataset.test_labels)
    return Examples(seen(train), y_train), Examples(seen(test), y_test)
