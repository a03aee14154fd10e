"""Your own training loop, protected by two lines. A network learns upright digits, then digits turned by 60°.

    python examples/own_loop.py        # needs: pip install ogd

It prints a table: the accuracy on both kinds of digits before the turned ones are learned, and after they are learned
without protection, with `ogd.ExampleMemory` (rehearsed), and with `ogd.GradientMemory` (projected).
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ogd


def learn(model, optimizer, x, y):
    """Your loop, as it is."""
    for rows in torch.randperm(len(y)).split(20):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def learned_in_turn(first, second, tests, kind, protected=True):
    """Return the accuracies after the first task and after the second one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    memory = kind(model)  # line one: an empty memory
    if protected:
        memory.protect(optimizer)  # line two: from now on training respects what is in it

    learn(model, optimizer, *first)
    memory.remember(first)  # the first task is finished: 200 of its examples are kept, or 500 gradients
    before = ogd.forgetting(model, tests)
    learn(model, optimizer, *second)
    return before, ogd.forgetting(model, tests)


def main(examples=6000):
    upright, turned = ogd.lab.benchmarks.rotated(angles=[0, 60]).tasks  # MNIST, which comes with ogd
    first, second = [(task.train.x[:examples], task.train.y[:examples]) for task in (upright, turned)]
    tests = {"upright": (upright.test.x, upright.test.y), "turned": (turned.test.x, turned.test.y)}
    before, plain = learned_in_turn(first, second, tests, ogd.ExampleMemory, protected=False)
    _, rehearsed = learned_in_turn(first, second, tests, ogd.ExampleMemory)
    _, projected = learned_in_turn(first, second, tests, ogd.GradientMemory)
    print(ogd.compare(before, plain, rehearsed=rehearsed, projected=projected))


if __name__ == "__main__":
    main()
