"""By default windows grow with the task."""

import torch
from torch import optim

from memory_models import moved, remembered, train
from ogd.memory.optimizers.projection_hooks import LONGEST, PART, SHORTEST
from reference import flat, trainable


def test_windows_grow_with_the_task_and_begin_anew_with_the_next() -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    optimizer = optim.SGD(memory.model.parameters(), lr=1e-4)
    projection = memory.protect(optimizer)
    sizes, last = [], 0
    for step in range(1, 400):
        train(memory.model, optimizer, x, y, 1)
        if not projection.pending:
            sizes.append(step - last)
            last = step
    assert sizes[:10] == [SHORTEST] * 10
    assert sizes[10:] == [max(end // PART, SHORTEST) for end in torch.tensor(sizes).cumsum(0)[9:-1].tolist()]
    memory.settle()
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10
    projection._steps = 10**6
    assert projection.every == LONGEST
    memory.remember((x, y))
    assert projection.every == SHORTEST
