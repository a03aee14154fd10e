"""Your own training loop, protected by two lines.

    python examples/own_loop.py

A network learns digits that stand upright, then digits turned by 60°. It does so twice, with the same numbers drawn:
without protection, and with it.
"""

import torch
from digits import digits
from torch import nn
from torch.nn.functional import cross_entropy

import ogd


def learn(model, optimizer, x, y, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(10):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


def learned_in_turn(tasks, tests, epochs, protected):
    """Return the accuracies after the first task and after the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    memory = ogd.GradientMemory(model, per_task=200)
    if protected:
        memory.protect(optimizer)  # projects every step; an empty memory changes nothing

    scores = []
    for x, y in tasks:
        learn(model, optimizer, x, y, epochs)
        if protected:
            memory.remember((x, y))  # 200 of the examples, as gradients
        scores.append(ogd.forgetting(model, tests))
    return scores[0], scores[-1]


def main(examples=2000, epochs=3):
    tasks = [digits(angle, examples) for angle in (0, 60)]
    tests = {name: digits(angle, 1000, "test") for name, angle in {"upright": 0, "turned": 60}.items()}
    before, plain = learned_in_turn(tasks, tests, epochs, protected=False)
    _, protected = learned_in_turn(tasks, tests, epochs, protected=True)
    print("before: the first task is learned; after: both are, without protection; protected: both are, with it")
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
