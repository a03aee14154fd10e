"""A task that has just been learned, as methods see it."""

from dataclasses import dataclass

from ogd import seeds
from ogd.benchmarks import Task
from ogd.benchmarks.batch import Batch, examples
from ogd.models.stack import Stack


@dataclass(frozen=True)
class Finished:
    """The task, the stack with the weights it ended with, and which task it was, counted from 1."""

    task: Task
    model: Stack
    number: int
    step: int  # how many steps were taken since training began
    outputs: int  # logits of the benchmark
    seed: int

    def draw(self, n: int) -> Batch:
        """Return n training examples of the task per run, drawn uniformly: the same ones for every method."""
        runs = self.model.runs
        index = seeds.draw(self.seed, runs, f"memory/{self.number}", len(self.task.train), n)
        return examples(self.task, index, self.task.columns(runs), self.outputs)
