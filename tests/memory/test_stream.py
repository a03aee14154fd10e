"""A stream without tasks: the memory keeps a uniform draw of what it has seen, with the outputs of the moment."""

from collections import Counter
from itertools import combinations
from math import comb
from pathlib import Path

import pytest
import torch
from torch import nn

from ogd.memory import BudgetExceeded, ExampleMemory, Memory, load
from ogd.memory.examples.reservoir import reservoir


def stream(steps: int, n: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)) for _ in range(steps)]


def numbered(memory: Memory) -> list[int]:
    """What is kept of a stream whose inputs are their own numbers."""
    return sorted(int(x) for batch in memory.examples.batches(torch.arange(len(memory))) for x in batch.x[:, 0])


def test_the_draw_is_uniform() -> None:
    kept = torch.zeros(40)
    for seed in range(2000):
        generator = torch.Generator().manual_seed(seed)
        have: list[int] = []
        for start in range(0, 40, 4):
            stay, enter = reservoir(len(have), start, 4, 10, generator)
            have = [have[i] for i in stay] + [start + i for i in enter]
        kept[have] += 1
    assert float(kept.sum()) == 2000 * 10
    assert float((kept / 2000 - 0.25).abs().max()) < 4 * (0.25 * 0.75 / 2000) ** 0.5


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_every_subset_is_as_likely(batch: int) -> None:
    size, n, draws = 2, 6, 3000
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        generator, have = torch.Generator().manual_seed(seed), list[int]()
        for start in range(0, n, batch):
            stay, enter = reservoir(len(have), start, batch, size, generator)
            have = [have[i] for i in stay] + [start + i for i in enter]
        counts[tuple(have)] += 1
    expected = draws / comb(n, size)
    chi_squared = sum((counts[pair] - expected) ** 2 / expected for pair in combinations(range(n), size))
    assert chi_squared < 36.1  # of 14 degrees of freedom: once in a thousand


def test_it_keeps_examples_of_the_whole_stream_with_the_outputs_of_their_time() -> None:
    model = nn.Linear(1, 2).double()
    memory = ExampleMemory(model, per_task=20)
    outputs = {}
    for step in range(30):
        x = torch.arange(4.0).view(4, 1).double() + 4 * step
        outputs |= {int(i): z for i, z in zip(x[:, 0], model(x).detach(), strict=True)}
        memory.observe(x, torch.zeros(4).long())
        with torch.no_grad():
            model.weight += 0.01
    assert memory.task_sizes == (20,)
    assert memory.observed == 120
    kept = numbered(memory)
    assert len(set(kept)) == 20
    assert min(kept) < 40
    assert max(kept) > 80
    for batch in memory.examples.batches(torch.arange(20)):
        for x, z in zip(batch.x, batch.z, strict=True):
            torch.testing.assert_close(z, outputs[int(x)])


def test_a_saved_stream_goes_on_as_without_a_break(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    whole, part = (ExampleMemory(model, per_task=6) for _ in range(2))
    for x, y in stream(20):
        whole.observe(x, y)
    for x, y in stream(20)[:9]:
        part.observe(x, y)
    part.save(tmp_path / "m.safetensors")
    part = load(tmp_path / "m.safetensors", model)
    for x, y in stream(20)[9:]:
        part.observe(x, y)
    assert part.observed == whole.observed == 100
    (one,), (two,) = (list(m.examples.batches(torch.arange(6))) for m in (whole, part))
    torch.testing.assert_close(one.x, two.x)
    torch.testing.assert_close(one.z, two.z)


def test_it_is_rehearsed_while_it_comes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
    memory = ExampleMemory(model, per_task=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rehearsal = memory.protect(optimizer, every=2, batch_size=4)
    for x, y in stream(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        memory.observe(x, y)
        assert model.training
    assert rehearsal.loss is not None
    assert memory.draws == 6


def test_errors() -> None:
    model = nn.Linear(4, 3)
    x, y = stream(1)[0]
    with pytest.raises(ValueError, match="per_task=None"):
        ExampleMemory(model, per_task=None).observe(x, y)
    memory = ExampleMemory(model)
    memory.remember((x, y))
    with pytest.raises(ValueError, match="holds tasks"):
        memory.observe(x, y)
    memory = ExampleMemory(model)
    memory.observe(x, y)
    with pytest.raises(ValueError, match="keeps a stream"):
        memory.remember((x, y))
    with pytest.raises(BudgetExceeded):
        ExampleMemory(model, budget="30B").observe(x, y)
    with pytest.raises(ValueError, match="not finite"):
        ExampleMemory(model).observe(x / 0, y)


def test_a_stream_has_the_checks_of_tasks() -> None:
    x, y = stream(1)[0]
    with pytest.raises(ValueError, match="shrink=True is for tasks"):
        ExampleMemory(nn.Linear(4, 3), 8, budget=10, shrink=True).observe(x, y)
    with pytest.raises(ValueError, match="nothing to protect"):
        ExampleMemory(nn.ReLU(), 8).observe(x, y)
    memory = ExampleMemory(nn.Linear(4, 3), 8)
    memory.observe(x, y)
    memory.forget(0)
    memory.remember((x, y))  # the stream is forgotten
    assert len(memory.task_sizes) == 1
