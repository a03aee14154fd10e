"""Fewer examples: per task, balanced, forgotten, shrunk to a budget; each as if only those had been remembered."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset

from memory_models import MODELS, make, rows, train
from ogd.memory import BudgetExceeded, GradientMemory, Memory, load
from ogd.memory.data.budget import equal_shares
from ogd.memory.data.sampling import balanced_rows, trim
from reference import logit_gradients, project_dense


def tasks_of(name: str, sizes: tuple[int, ...], **options: object) -> tuple[Memory, list[tuple[Tensor, Tensor]]]:
    model, x, y = make(name, n=sum(sizes))
    memory = GradientMemory(model, None, **options)
    data = list(zip(x.split(sizes), y.split(sizes), strict=True))
    for task in data:
        memory.remember(task)
    return memory, data


def check_same(memory: Memory, other: Memory) -> None:
    """Two memories of one model hold and do the same."""
    assert memory.task_sizes == other.task_sizes
    assert memory.store.shapes == other.store.shapes
    assert memory.nbytes == other.nbytes
    torch.testing.assert_close(rows(memory), rows(other))
    G = rows(memory)
    torch.testing.assert_close(memory.store.gram(memory.store.shapes), G @ G.mT)
    update = {name: torch.randn_like(p) for name, p in memory.model.named_parameters()}
    ours, theirs = (torch.cat([u.flatten() for u in m.project(update).values()]) for m in (memory, other))
    torch.testing.assert_close(ours, theirs)
    flat = torch.cat([u.flatten() for u in update.values()])
    torch.testing.assert_close(ours, project_dense(G, flat) if len(G) else flat)


@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize("outputs", ["true", "all"])
@pytest.mark.parametrize("task", [0, 1, -1])
@pytest.mark.parametrize("name", MODELS)
def test_forgetting_is_never_having_remembered(name: str, task: int, outputs: str, ranked: bool) -> None:
    memory, data = tasks_of(name, (3, 2, 4), outputs=outputs)
    if ranked:  # K is known for all rows
        _ = memory.rank
    memory.forget(task)
    del data[task]
    other = GradientMemory(memory.model, None, outputs=outputs)
    for kept in data:
        other.remember(kept)
    check_same(memory, other)
    assert memory.store.rows_per_example == other.store.rows_per_example
    if name != "odd":  # whose outputs depend on the batch
        storage = sum(t.untyped_storage().nbytes() for p in memory.store.pieces for t in p.block.tensors().values())
        assert storage == memory.nbytes  # nothing of the forgotten is kept alive


def test_forgetting_when_K_lacks_the_last_rows_and_all() -> None:
    memory, data = tasks_of("mlp", (3, 2))
    _ = memory.rank
    memory.remember(data[0])
    memory.forget(0)
    other = GradientMemory(memory.model, None)
    other.remember(data[1])
    other.remember(data[0])
    check_same(memory, other)
    memory.forget(1)
    memory.forget(0)
    check_same(memory, GradientMemory(memory.model))
    memory.remember(data[1])
    assert memory.task_sizes == (2,)


def test_tasks_stored_in_other_forms_are_joined_again() -> None:
    torch.manual_seed(0)
    model = nn.Linear(9, 11).double()
    memory, other = (GradientMemory(model, None, outputs=lambda f, y: f.mean(1)[:, 0]) for _ in range(2))
    data = [torch.randn(4, length, 9).double() for length in (2, 8, 2)]  # factored, dense, factored
    for x in data:
        memory.remember((x, None))
    memory.forget(1)
    for x in data[::2]:
        other.remember((x, None))
    check_same(memory, other)
    assert len(memory.store.pieces) == len(other.store.pieces) == 1


def test_the_protection_follows() -> None:
    memory, data = tasks_of("mlp", (4, 4))
    model = memory.model
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=4)
    first, second = (logit_gradients(model, *task) for task in data)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    train(model, optimizer, data[0][0], data[1][1], 2)
    memory.forget(0)  # what is pending was moved under protection of both
    middle = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (torch.cat([first, second]) @ (middle - start)).abs().max() < 1e-12
    train(model, optimizer, data[0][0], data[1][1], 4)
    end = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (second @ (end - middle)).abs().max() < 1e-12
    assert (first @ (end - middle)).abs().max() > 1e-4


def found_in(G: Tensor, H: Tensor) -> list[int]:
    """Which rows of H those of G are."""
    nearest = torch.cdist(G, H, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert nearest.values.max() < 1e-9
    return nearest.indices.tolist()


@pytest.mark.parametrize("outputs", ["true", "all"])
@pytest.mark.parametrize("unit", ["directions", "bytes"])
def test_a_full_memory_shrinks_all_tasks_alike(unit: str, outputs: str, tmp_path: Path) -> None:
    each = 4 if outputs == "all" else 1
    nbytes = 8 * (12 + 10 + 9 + 10 + 9 + 4)
    budget = 16 * each if unit == "directions" else f"{16 * each * nbytes}B"
    model, x, y = make("mlp", n=40)
    memory = GradientMemory(model, None, outputs=outputs, budget=budget, shrink=True)
    shares = []
    for start in range(0, 40, 10):
        memory.remember((x[start : start + 10], y[start : start + 10]))
        shares.append(tuple(n // each for n in memory.task_sizes))
    memory.remember((x[:1], y[:1]))
    shares.append(tuple(n // each for n in memory.task_sizes))
    assert shares == [(10,), (8, 8), (6, 5, 5), (4, 4, 4, 4), (4, 4, 4, 3, 1)]
    G = logit_gradients(model, x, y, outputs=outputs)
    kept = found_in(rows(memory), G)[:-each]
    assert [k % each for k in kept] == list(range(each)) * (len(kept) // each)  # whole examples
    other = GradientMemory(model, None, outputs=outputs)
    ends = [sum(memory.task_sizes[:i]) for i in range(6)]
    for i, j in itertools.pairwise(ends[:5]):
        examples = [k // each for k in kept[i:j:each]]
        other.remember((x[examples], y[examples]))
    other.remember((x[:1], y[:1]))
    check_same(memory, other)
    memory.save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", model)
    assert (loaded.shrink, loaded.store.rows_per_example) == (True, memory.store.rows_per_example)
    smaller = load(tmp_path / "m.safetensors", model, budget=6 * each)
    assert tuple(n // each for n in smaller.task_sizes) == (2, 1, 1, 1, 1)


def test_shrinking_is_uniform_and_follows_the_seed() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    x = torch.arange(20.0).double().unsqueeze(1)

    def kept(seed: int) -> list[int]:
        torch.manual_seed(seed)
        memory = GradientMemory(model, None, budget=8, shrink=True)
        for task in x.split(10):
            memory.remember((task, torch.zeros(10).long()))
        assert memory.task_sizes == (4, 4)
        return rows(memory).flatten().int().tolist()

    draws = [kept(seed) for seed in range(200)]
    assert kept(3) == draws[3]
    assert all(draw == sorted(draw) for draw in draws)
    counts = torch.tensor([i for draw in draws for i in draw]).bincount(minlength=20)
    assert counts.min() > 50 and counts.max() < 110  # noqa: PT018  (80 expected each, standard deviation 7)


def test_a_budget_for_less_than_an_example_of_each_task() -> None:
    memory, data = tasks_of("mlp", (3, 3), budget=2, shrink=True)
    assert memory.task_sizes == (1, 1)
    before = rows(memory)
    with pytest.raises(BudgetExceeded, match=r"budget of 2 directions is too small for an example of each of 3 tasks"):
        memory.remember(data[0])
    assert torch.equal(rows(memory), before)
    memory, data = tasks_of("mlp", (3,), outputs="all")
    small = GradientMemory(memory.model, outputs="all", budget=3, shrink=True)
    with pytest.raises(BudgetExceeded, match="too small for an example: nothing was stored"):
        small.remember(data[0])


def test_per_task_for_one_task() -> None:
    model, x, y = make("mlp", n=12)
    memory = GradientMemory(model, 4)
    for per_task in (2, 12, 7):
        memory.remember((x, y), per_task=per_task)
    memory.remember((x, y))
    assert memory.task_sizes == (2, 12, 7, 4)
    assert memory.per_task == 4


BALANCED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "tensors": lambda x, y: (x, y),
    "dataset": TensorDataset,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), 32),
    "shuffled loader": lambda x, y: DataLoader(TensorDataset(x, y), 32, shuffle=True),
    "dictionary": lambda x, y: {"input": x, "labels": y},
}


@pytest.mark.parametrize("source", BALANCED)
def test_balanced_remembers_rare_labels(source: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1, 3, bias=False).double()
    x = torch.arange(600.0).double().unsqueeze(1)
    y = torch.zeros(600).long()
    y[100:300] = 1
    y[[5, 305, 599]] = 2

    def drawn(seed: int) -> Tensor:
        memory = GradientMemory(model, 50)
        data = BALANCED[source](x, y)
        torch.manual_seed(0)
        memory.remember(data, choose="balanced", generator=torch.Generator().manual_seed(seed))
        assert len(memory) == 50
        return rows(memory)

    G = drawn(0)
    counts = (G.view(50, 3) != 0).sum(0).tolist()
    assert counts[2] == 3
    assert sorted(counts) == [3, 23, 24]
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_a_balanced_draw_is_uniform_within_a_label() -> None:
    y = torch.tensor([0] * 8 + [1] * 2 + [2] * 8)
    data = DataLoader(TensorDataset(torch.arange(18.0).double().unsqueeze(1) + 1, y), 5)
    model = nn.Linear(1, 3, bias=False).double()
    counts = torch.zeros(2, 18)
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        counts[0, balanced_rows(y, 9, generator)] += 1
        memory = GradientMemory(model, 9)
        memory.remember(data, choose="balanced", generator=generator)
        counts[1, rows(memory).sum(1).long() - 1] += 1
    expected = torch.tensor([3.5 / 8] * 8 + [1.0] * 2 + [3.5 / 8] * 8) * 300
    assert (counts - expected).abs().max() < 35  # a standard deviation is 9


def test_trimming_batch_by_batch_is_trimming_at_once() -> None:
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        keys = torch.rand(30, generator=generator).tolist()
        labels = torch.randint(4, (30,), generator=generator).tolist()
        drawn = list(zip(keys, labels, range(30), strict=True))
        kept: list[tuple[float, int, int]] = []
        for start in range(0, 30, 4):
            kept = trim([*kept, *drawn[start : start + 4]], 10)
        assert kept == trim(drawn, 10)


def test_equal_shares_by_trying_all() -> None:
    for sizes in ([3, 5, 1], [0, 4], [7], []):
        for most in range(14):
            shares = equal_shares(sizes, most)
            assert sum(shares) == min(most, sum(sizes))
            full = [share for share, size in zip(shares, sizes, strict=True) if share == size]
            cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
            assert not cut or (max(cut) - min(cut) <= 1 and max([*full, 0]) <= max(cut) + 1)


@pytest.mark.parametrize("weights", [[2, 5], [5, 2], [2, 3], [1, 4, 3], [3, 3]])
def test_equal_shares_of_groups_with_weights_by_trying_all_levels(weights: list[int]) -> None:
    sizes = [8, 9, 2][: len(weights)]

    def total(counts: list[int]) -> int:
        return sum(count * weight for count, weight in zip(counts, weights, strict=True))

    for most in range(50):
        shares = equal_shares(sizes, most, weights)
        one_each = sum(weights) <= most
        levels = [
            [min(size, max(level // weight, one_each)) for size, weight in zip(sizes, weights, strict=True)]
            for level in range(most + 1)
        ]
        least = max((counts for counts in levels if total(counts) <= most), key=total)
        assert total(shares) <= most
        assert all(share - count in (0, 1) for share, count in zip(shares, least, strict=True))
        assert all(shares) or not one_each


def test_an_example_of_each_task_is_kept_wherever_that_fits_the_budget() -> None:
    torch.manual_seed(0)
    memory = GradientMemory(nn.Linear(3, 5), budget=7, shrink=True, outputs="all")
    memory.remember((torch.randn(3, 3), None), classes=[0, 1])
    memory.remember((torch.randn(3, 3), None))  # with two directions and five there is room for one example of each
    assert memory.task_sizes == (2, 5)
