"""By default windows grow with the task."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import ogd
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
    projection.steps = 10**6
    assert projection.every == LONGEST
    memory.remember((x, y))
    assert projection.every == SHORTEST


def test_a_training_that_resumes_has_the_windows_of_one_that_was_only_saved(tmp_path: Path) -> None:
    memory, _, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.01)
    memory.protect(optimizer)
    train(memory.model, optimizer, x, y, 150)
    memory.save(tmp_path / "m.safetensors")
    other = copy.deepcopy(memory.model)
    again = ogd.load(tmp_path / "m.safetensors", other)
    resumed = optim.SGD(other.parameters(), lr=0.01)
    projection = again.protect(resumed)
    assert projection.every == 15
    for model, steps in ((memory.model, optimizer), (other, resumed)):
        train(model, steps, x, y, 50)
    memory.settle()
    again.settle()
    assert torch.equal(flat(trainable(memory.model)), flat(trainable(other)))
    copied: Any = copy.deepcopy(memory)
    assert copied.protect(optim.SGD(copied.model.parameters(), lr=0.01)).every == 20
    again.load_state_dict(ogd.load(tmp_path / "m.safetensors", other).state_dict())
    assert projection.every == 15
    again.remember((x, y))
    assert projection.every == SHORTEST


@pytest.mark.parametrize("progress", [None, [-1], ["10"], 3])
def test_damaged_progress_is_refused(progress: object) -> None:
    memory, *_ = remembered("mlp")
    with pytest.raises(ValueError, match=r"malformed|whole number"):
        memory.load_state_dict(memory.state_dict() | {"progress": progress})
