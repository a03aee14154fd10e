"""A stream without tasks: digits turn slowly from 0° to 90°, and nobody says when something new begins.

    python examples/stream.py          # needs: pip install ogd

`memory.observe(x, y)` takes the place of `memory.remember`: it keeps a uniform draw of all batches so far, with the
model's outputs of that time. It prints how many examples were kept, and a table: the accuracy on digits of four angles
before they begin to turn, and at the end without protection and with it.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ogd


def learned(stream, tests, examples, protected):
    """Return the memory, and the accuracies after the first tenth of the stream and after the last."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    memory = ogd.ExampleMemory(model, per_task=500)  # 500 in all
    if protected:
        memory.protect(optimizer)
    scores = []
    for tenth in stream:
        for rows in torch.arange(examples).split(10):
            x, y = tenth.train.x[rows], tenth.train.y[rows]
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            memory.observe(x, y)
        scores.append(ogd.forgetting(model, tests))
    return memory, scores[0], scores[-1]


def main(examples=2000):
    stream = ogd.lab.benchmarks.rotated(angles=list(range(0, 100, 10))).tasks  # MNIST, which comes with ogd
    tests = {f"{10 * i}°": (stream[i].test.x[:2000], stream[i].test.y[:2000]) for i in (0, 3, 6, 9)}
    _, before, plain = learned(stream, tests, examples, protected=False)
    memory, _, protected = learned(stream, tests, examples, protected=True)
    print(f"{memory.observed:,} examples seen, {len(memory)} kept")
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
