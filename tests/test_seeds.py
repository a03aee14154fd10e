"""Draws of different seeds, purposes and counters have nothing in common; the same ones are the same draws."""

import itertools
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from memory_models import rows
from ogd import seeds
from ogd.memory import ExampleMemory, Memory, load
from ogd.memory import example_memory as rehearsal
from ogd.memory.data.distributed_sampling import Key, balanced_shares, shares
from ogd.memory.examples.prefetch import BATCHES, draw
from ogd.memory.loading import KINDS
from ogd.memory.ranks.collective import torch_seed

SEEDS = (0, 1, 2, 3, 2**32, 2**32 + 1, 2**63 - 1)
DATA = torch.arange(1000.0)[:, None], torch.zeros(1000, dtype=torch.long)


def all_different(draws: list[Any]) -> bool:
    return len({tuple(draw.tolist()) if isinstance(draw, Tensor) else draw for draw in draws}) == len(draws)


def remembered(seed: int, keep: str = "examples", **options: int) -> Memory:
    torch.manual_seed(seed)
    memory = KINDS[keep](nn.Linear(1, 1, bias=False), **{"per_task": 100, **options})
    memory.remember(DATA)
    return memory


def test_rehearsed_batches() -> None:
    assert all_different([draw(seed, j, 100, 10) for seed in SEEDS for j in range(100)])


def test_the_examples_of_tasks() -> None:
    """Seeds and sizes are such that their sums coincide."""
    found = []
    for seed in (0, 3, 6):
        memory = remembered(seed, "gradients", per_task=3)
        memory.remember(DATA)
        memory.remember(DATA)
        found += [*rows(memory).view(3, 3).sort().values]
    assert all_different(found)


def test_generators_of_a_memory_are_not_torch_s_own() -> None:
    found = []
    for seed in range(5):
        torch.manual_seed(seed)
        found += [
            torch.rand(5),
            *(torch.rand(5, generator=seeds.generator(torch_seed(), "remember", n)) for n in range(5)),
        ]
    assert all_different(found)


def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    used, reservoir = [], rehearsal.reservoir

    def noted(kept: int, seen: int, new: int, size: int, generator: Generator) -> Any:
        used.append(generator.initial_seed())
        return reservoir(kept, seen, new, size, generator)

    monkeypatch.setattr(rehearsal, "reservoir", noted)
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        memory = ExampleMemory(nn.Linear(1, 1), per_task=4)
        for batch in DATA[0].split(1)[:20]:
            memory.observe(batch)
    assert all_different(used)
    assert len(used) == 60


def offers(n: int) -> list[list[Key]]:
    return [[(bytes([r, i]), 0) for i in range(n)] for r in range(2)]


def test_what_the_ranks_give() -> None:
    """Each rank has all of its part to offer, so that nothing else is drawn."""
    assert all_different([repr(shares(offers(50), 50, seed)) for seed in SEEDS])
    labels = [[i % 2 for i in range(50)] for _ in range(2)]
    assert all_different([repr(balanced_shares(offers(50), labels, 50, seed)) for seed in SEEDS])


def test_a_memory_that_shrinks_when_it_is_loaded() -> None:
    found = []
    for seed in (0, 1):
        memory = remembered(seed, per_task=1000)
        small = ExampleMemory(memory.model, budget=10, shrink=True)
        small.load_state_dict(memory.state_dict())
        assert isinstance(small, ExampleMemory)
        found.append(next(iter(small.examples.batches(torch.arange(10)))).x.flatten())
    assert all_different(found)


@pytest.mark.parametrize("until", [0, 3, BATCHES, BATCHES + 5])
def test_a_saved_memory_resumes_to_the_same_draws(until: int, tmp_path) -> None:
    memory = remembered(7)
    for _ in range(until):
        memory.remembered_loss(8)
    memory.save(tmp_path / "memory.safetensors")
    torch.manual_seed(8)  # of another process
    again = load(tmp_path / "memory.safetensors", memory.model)
    with torch.no_grad():
        memory.model.weight += 1.0
    losses = [[m.remembered_loss(8).item() for _ in range(2 * BATCHES)] for m in (memory, again)]
    assert losses[0] == losses[1]
    assert all_different(losses[0])


def test_numbers_use_the_bits_that_torch_does() -> None:
    """torch's generator on the CPU ignores all but 32 bits of a seed."""
    one, other = (torch.rand(9, generator=Generator().manual_seed(s)) for s in (5, 5 + 2**32))
    assert torch.equal(one, other)
    parts = itertools.product(SEEDS, ("remember", "rehearsal", "stream"), range(50))
    numbers = [seeds.number(*part) for part in parts]
    assert all_different(numbers)
    assert 0 <= min(numbers) < 2**28 < 2**32 - 2**28 < max(numbers) < 2**32
