"""Arrays → a sequence of tasks."""

from ogd.benchmarks.own import from_datasets
from ogd.benchmarks.permuted import permuted
from ogd.benchmarks.rotated import rotate, rotated
from ogd.benchmarks.split import split
from ogd.benchmarks.task import Benchmark, Examples, Task

__all__ = ["Benchmark", "Examples", "Task", "from_datasets", "permuted", "rotate", "rotated", "split"]
