"""Metrics from the accuracy matrix alone.

The matrix a has one row more than there are tasks: a[i, j] is the accuracy on task j after training on the first
i tasks, so that a[0] is the accuracy of the initial weights (columns count from 1 in the formulas below). All
functions take leading axes, so a whole stack (runs, 1 + tasks, tasks) gives one value per run. What needs a second
task is NaN where there is only one.
"""

import numpy as np
import numpy.typing as npt

from ogd.checks import ArgumentError

Array = npt.NDArray[np.float64]


def final_accuracy(a: npt.ArrayLike) -> Array:
    """a[T, j]: the accuracy on every task after the last one."""
    return _checked(a)[..., -1, :]


def average_accuracy(a: npt.ArrayLike) -> Array:
    """(1/T) Σ_j a[T, j] (Lopez-Paz and Ranzato, 2017).

    Examples:
        >>> float(average_accuracy([[0.5, 0.5], [1.0, 0.5], [0.7, 0.9]]))
        0.8
    """
    return _mean(final_accuracy(a))


def forgetting(a: npt.ArrayLike) -> Array:
    """(1/(T−1)) Σ_{j<T} (max_{1≤i<T} a[i, j] − a[T, j]): what was known and is lost (Chaudhry et al., 2018)."""
    a = _checked(a)
    best, last = a[..., 1:-1, :-1], a[..., -1, :-1]
    return _mean(best.max(-2) - last) if best.size else _mean(last[..., :0])


def backward_transfer(a: npt.ArrayLike) -> Array:
    """(1/(T−1)) Σ_{j<T} (a[T, j] − a[j, j]): how later tasks changed earlier ones (Lopez-Paz and Ranzato, 2017)."""
    a = _checked(a)
    learned = np.diagonal(a[..., 1:, :], axis1=-2, axis2=-1)
    return _mean((a[..., -1, :] - learned)[..., :-1])


def forward_transfer(a: npt.ArrayLike) -> Array:
    """(1/(T−1)) Σ_{j>1} (a[j−1, j] − a[0, j]): what a task gains before it is trained (Lopez-Paz and Ranzato, 2017)."""
    a = _checked(a)
    before = np.diagonal(a[..., 1:, :], offset=1, axis1=-2, axis2=-1)  # a[j−1, j] for j = 2 … T
    return _mean(before - a[..., 0, 1:])


def _checked(a: npt.ArrayLike) -> Array:
    matrix = np.asarray(a, dtype=np.float64)
    if matrix.ndim < 2 or matrix.shape[-2] != matrix.shape[-1] + 1 or matrix.shape[-1] == 0:
        raise ArgumentError("a", f"an accuracy matrix is (…, 1 + tasks, tasks), not {matrix.shape}")
    return matrix


def _mean(values: Array) -> Array:
    return np.asarray(values.mean(-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan))
