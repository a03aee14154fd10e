"""every="auto": k follows from the measured times of steps and projections."""

import time
from collections.abc import Sequence

import pytest
import torch
from torch import optim

from memory_models import moved, remembered, train
from ogd.memory.optimizers import auto_every as pace
from ogd.memory.optimizers.auto_every import FIRST, SHARE, Pace, steps_between
from reference import flat, trainable


@pytest.mark.parametrize(("t", "t_P"), [(0.01, 0.1), (0.1, 0.001), (1.0, 0.0), (0.0, 1.0)])
def test_k_is_the_fewest_steps_that_keep_the_share(t: float, t_P: float) -> None:
    k = steps_between([t] * 5, [t_P])
    assert k >= 1
    assert t_P <= SHARE * k * max(t, 1e-9) * (1 + 1e-6)
    assert k == 1 or t_P > SHARE * (k - 1) * max(t, 1e-9)


def test_pauses_between_steps_and_projections_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    measured = Pace()
    for step in range(40):
        measured.start_step()
        now[0] += 0.01
        if step % 10 == 0:
            now[0] += 0.3
            measured.record_projection(0.3)
            measured.choose(torch.device("cpu"))
        if step == 25:
            now[0] += 60  # an evaluation
    for _ in range(9):
        measured.choose(torch.device("cpu"))
    assert measured.every == steps_between([0.01], [0.3])
    measured.record_projection(100.0, counts=False)
    measured.choose(torch.device("cpu"))
    assert measured.every == steps_between([0.01], [0.3])


def test_it_protects_and_adapts(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, G, x, y = remembered("mlp")
    before = flat(trainable(memory.model))
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every="auto")
    assert protection.every == FIRST
    measured, began = [], time.perf_counter()

    def steps_between(steps: Sequence[float], projections: Sequence[float]) -> int:
        measured.append((sum(steps), sum(projections)))
        return 3

    monkeypatch.setattr(pace, "steps_between", steps_between)
    pending = []
    for _ in range(FIRST + 6):
        train(memory.model, optimizer, x, y, 1)
        pending.append(protection.pending)
    assert pending == [*range(1, FIRST), 0, 1, 2, 0, 1, 2, 0]
    assert protection.every == 3
    taken = time.perf_counter() - began
    assert all(0 < steps < taken and 0 < projections < taken for steps, projections in measured)
    train(memory.model, optimizer, x, y, 2)
    memory.settle()
    assert moved(memory.model, before).norm() > 1e-3
    assert (G @ moved(memory.model, before)).abs().max() < 1e-10


def test_k_begins_small_doubles_at_most_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "steps_between", lambda steps, projections: 10**6)
    measured, chosen = Pace(), []
    for _ in range(12):
        measured.start_step()
        measured.record_projection(1.0)
        measured.choose(torch.device("cpu"))
        chosen.append(measured.every)
    assert chosen[:5] == [8, 16, 32, 64, 128]  # the first step has no length before the second begins
    assert chosen[-1] == pace.MOST
    memory, _, x, y = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every="auto")
    train(memory.model, optimizer, x, y, 60)
    assert protection.every > FIRST
    memory.remember((x, y))
    assert protection.every == FIRST


def test_other_words_are_refused() -> None:
    memory, _, _, _ = remembered("mlp")
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r'1 or more, "growing" or "auto", not \'always\''):
        memory.protect(optimizer, every="always")
