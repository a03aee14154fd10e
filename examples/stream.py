"""A stream without tasks: the digits turn slowly from 0° to 90°, and nobody says when something new begins.

    python examples/stream.py

`memory.observe(x, y)` keeps a uniform draw of all that was seen, with the model's outputs of that time. The optimizer's
step rehearses it. Where a stream has no tasks there is no moment to call `memory.remember`.
"""

import torch
from digits import digits
from torch import nn
from torch.nn.functional import cross_entropy

import ogd


def stream(examples):
    """Batches of 10 images; each tenth of the stream is turned by 10° more than the one before."""
    x, y = zip(*(digits(angle, examples) for angle in range(0, 100, 10)), strict=True)
    for turned, labels in zip(x, y, strict=True):
        for rows in torch.arange(examples).split(10):
            yield turned[rows], labels[rows]


def trained(examples, protected):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    memory = ogd.ExampleMemory(model, per_task=500)  # 500 in all
    if protected:
        memory.protect(optimizer)
    for x, y in stream(examples):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        memory.observe(x, y)
    return model, memory


def main(examples=2000):
    tests = {f"{angle}°": digits(angle, 1000, "test") for angle in (0, 30, 60, 90)}
    plain, _ = trained(examples, protected=False)
    guarded, memory = trained(examples, protected=True)
    print(f"{memory.observed:,} examples seen, {len(memory)} kept; before: unprotected; after: protected")
    print(ogd.compare(ogd.forgetting(plain, tests), ogd.forgetting(guarded, tests)))


if __name__ == "__main__":
    main()
