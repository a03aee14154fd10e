"""A method of your own in the laboratory: replay, but only in steps that would hurt the old tasks.

    python examples/own_method.py                                              # trains and compares, in this process
    ogd run --plugin examples/own_method.py --method conflict ogd sgd --runs 5   # the same method by its name

It needs the laboratory: pip install 'ogd[lab]'. It prints a table: the accuracy on each of three tasks after the last
one, for SGD, for OGD and for the new method. docs/laboratory.md explains the hooks.
"""

import torch

import ogd
from ogd.lab.catalogue.methods import PER_TASK, REPLAY_BATCH


@ogd.lab.methods.register("conflict", label="Replay in conflict", options=[PER_TASK, REPLAY_BATCH])
class Conflict(ogd.lab.methods.Method):
    """Where the new gradient and that of stored examples point apart, learn both; elsewhere only the new one."""

    def __init__(self, per_task=200, replay_batch=10):
        self.per_task, self.replay_batch = per_task, replay_batch

    def begin(self, model, seed):
        self.buffer = ogd.lab.methods.Buffer(self.per_task, self.replay_batch)

    def end_task(self, finished):
        self.buffer.add(finished)

    def transform(self, gradient, model, step):
        if not self.buffer:
            return gradient
        old = model.gradient(self.buffer.draw(step))
        return gradient.plus(old, (gradient.dot(old) < 0).to(torch.float32))  # (R,): each run decides for itself


def main(dataset=None, runs=2):
    benchmark = ogd.lab.benchmarks.rotated(angles=[0, 30, 60], dataset=dataset)
    methods = {"SGD": ogd.lab.methods.SGD(), "OGD": ogd.lab.methods.OGD(), "Replay in conflict": Conflict()}
    print(f"{'accuracy (%), mean of runs':28} {'task 1':>7} {'task 2':>7} {'task 3':>7} {'average':>7}")
    for name, method in methods.items():
        model = ogd.lab.models.StackedMLP([benchmark.inputs, 100, 100, benchmark.outputs], runs=runs)
        result = ogd.lab.training.train(benchmark, model, method, epochs=1, batch_size=50, lr=0.02, progress=False)
        scores = [*result.final_accuracy.mean(0), result.average_accuracy.mean()]
        print(f"{name:28} " + " ".join(f"{100 * score:7.1f}" for score in scores))


if __name__ == "__main__":
    main()
