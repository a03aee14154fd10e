"""A task that has just been learned, as methods see it."""

from dataclasses import dataclass

import torch

from ogd import seeds
from ogd.lab.benchmarks import Task
from ogd.lab.benchmarks.batches import Batch, examples
from ogd.lab.methods.choosing import chosen_rows
from ogd.lab.models.stack import Stack
from ogd.memory.inputs.merging import merged
from ogd.memory.inputs.uncertain import AMONG


@dataclass(frozen=True)
class Finished:
    """The task, the stack with the weights it ended with, and which task it was, counted from 1."""

    task: Task
    model: Stack
    number: int
    step: int  # how many steps were taken since training began
    outputs: int  # logits of the benchmark
    seed: int

    def draw(self, n: int, choose: str = "uniform", merge: int = 1) -> Batch:
        """Return n training examples of the task per run, the same ones for every method that chooses alike.

        Those that are not drawn uniformly are chosen among many that are: `ogd.lab.methods.choosing`. With `merge` they
        are the means of groups of `merge` times as many: `ogd.memory.inputs.merging`.
        """
        if merge > 1:
            return self._merged(self.draw(n * merge, choose), n)
        runs, columns = self.model.runs, self.task.columns(self.model.runs)
        among = n if choose == "uniform" else n * AMONG
        index = seeds.draw(self.seed, runs, f"memory/{self.number}", len(self.task.train), among)
        batch = examples(self.task, index, columns, self.outputs)
        if choose == "uniform" or index.shape[1] <= n:
            return batch
        z = self.model.passing(batch.x)[1]
        z = z if batch.head is None else z + batch.head
        draws = [seeds.generator(self.seed, run, f"choice/{self.number}") for run in runs]
        y = self.task.train.y[index]
        rows = [chosen_rows(choose, z[r], y[r], n, draws[r]) for r in range(len(runs))]
        return examples(self.task, index.gather(1, torch.stack(rows)), columns, self.outputs)

    def _merged(self, batch: Batch, n: int) -> Batch:
        kept = []
        for r, run in enumerate(self.model.runs):
            generator = seeds.generator(self.seed, run, f"merge/{self.number}")
            kept.append(merged((batch.x[r], batch.target[r].argmax(-1)), n, generator))
        x, y = (torch.stack(parts) for parts in zip(*kept, strict=True))
        return Batch(x, torch.eye(self.outputs)[y], batch.head)
