"""A convolutional network with BatchNorm under Adam: unprotected, by projection, and by rehearsal.

    python examples/cnn.py

The first task is upright digits, the second digits turned by 60°. `GradientMemory` keeps gradients of 200
examples and projects every 10 steps at once; `ExampleMemory` keeps the 200 examples themselves and rehearses them.
"""

import torch
from digits import digits
from torch import nn
from torch.nn.functional import cross_entropy

import ogd


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.BatchNorm2d(8),  # after the first task its running statistics are kept as they are
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def learned_in_turn(tasks, tests, epochs, kind=None, every=1):
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memory = None
    if kind is not None:
        memory = kind(model, per_task=200)
        memory.protect(optimizer, every)
    scores = []
    for x, y in tasks:
        model.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(y)).split(32):
                optimizer.zero_grad()
                cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
        if memory is not None:
            memory.remember((x, y))
        scores.append(ogd.forgetting(model, tests))
    return scores[0], scores[-1]


def main(examples=2000, epochs=5):
    tasks = [digits(angle, examples) for angle in (0, 60)]
    tests = {name: digits(angle, 1000, "test") for name, angle in {"upright": 0, "turned": 60}.items()}
    before, plain = learned_in_turn(tasks, tests, epochs)
    _, projected = learned_in_turn(tasks, tests, epochs, ogd.GradientMemory, every=10)
    _, rehearsed = learned_in_turn(tasks, tests, epochs, ogd.ExampleMemory, every=2)
    print("before: the first task is learned; after: both are, without protection; then with each kind of protection")
    print(ogd.compare(before, plain, projected=projected, rehearsed=rehearsed))


if __name__ == "__main__":
    main()
