"""A regression: a robot arm learns where its hand is, first with the elbow to the left, then with it to the right.

    python examples/regression.py      # needs: pip install ogd

The arm has two joints; the network computes the place of the hand, two numbers, from the two angles. It prints a table:
the typical error in centimetres for both positions of the elbow, before the second one is learned, and after it is
learned without protection, with `ogd.ExampleMemory` (rehearsed), and with `ogd.GradientMemory` (projected).
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import ogd

UPPER, LOWER = 0.4, 0.3  # the lengths of the arm, in metres


def positions(side, n, generator):
    """Return the joints' angles (n, 2) with the elbow bent to one side (1 or −1), and the places of the hand (n, 2)."""
    shoulder = torch.rand(n, generator=generator) * torch.pi - torch.pi / 2
    elbow = side * torch.rand(n, generator=generator) * torch.pi
    x = UPPER * shoulder.cos() + LOWER * (shoulder + elbow).cos()
    y = UPPER * shoulder.sin() + LOWER * (shoulder + elbow).sin()
    return torch.stack([shoulder, elbow], 1), torch.stack([x, y], 1)


def learn(model, optimizer, angles, places, epochs):
    for _ in range(epochs):
        for rows in torch.randperm(len(angles)).split(32):
            optimizer.zero_grad()
            mse_loss(model(angles[rows]), places[rows]).backward()
            optimizer.step()


def learned_in_turn(left, right, tests, epochs, kind, protected=True, **options):
    """Return the errors after the first task and after the second one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memory = kind(model, **options)
    if protected:
        memory.protect(optimizer)
    learn(model, optimizer, *left, epochs)
    memory.remember(left)
    before = ogd.forgetting(model, tests, measure=centimetres)
    learn(model, optimizer, *right, epochs)
    return before, ogd.forgetting(model, tests, measure=centimetres)


def centimetres(z, y):
    """Return the distance of each computed place from the true one."""
    return 100 * (z - y).norm(dim=1)


def main(examples=2000, epochs=20):
    generator = torch.Generator().manual_seed(0)
    left, right = [positions(side, examples, generator) for side in (1, -1)]
    tests = {name: positions(side, 1000, generator) for name, side in {"left": 1, "right": -1}.items()}
    before, plain = learned_in_turn(left, right, tests, epochs, ogd.ExampleMemory, protected=False)
    _, rehearsed = learned_in_turn(left, right, tests, epochs, ogd.ExampleMemory)
    _, projected = learned_in_turn(left, right, tests, epochs, ogd.GradientMemory, outputs="all")
    print(ogd.compare(before, plain, rehearsed=rehearsed, projected=projected))


if __name__ == "__main__":
    main()
