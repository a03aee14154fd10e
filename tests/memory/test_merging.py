"""Means of examples that are alike, kept in place of single ones: in the laboratory and in a memory."""

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ogd import ExampleMemory, Memory
from ogd.lab import benchmarks
from ogd.lab.methods import DER, ER
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.models import StackedMLP
from ogd.memory.examples.clustering import assign_groups, cluster_means, group_means, k_means, proportional_shares


def seeded(n: int = 0) -> Generator:
    return Generator().manual_seed(n)


def kept(memory: Memory) -> tuple[Tensor, Tensor | None, Tensor]:
    batch = next(iter(memory.examples.batches(torch.arange(len(memory)))))  # type: ignore[attr-defined]
    return batch.x, batch.y, batch.z


def blobs(each: int = 20) -> tuple[Tensor, Tensor]:
    """Four far-apart clouds, two of each label."""
    centres = torch.tensor([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0], [50.0, 50.0]])
    x = centres.repeat_interleave(each, 0) + torch.randn(4 * each, 2, generator=seeded())
    return x, torch.arange(4).repeat_interleave(each) // 2


def test_means_are_those_of_a_loop() -> None:
    t, group = torch.randn(30, 4, 3, dtype=torch.float64), torch.arange(30) % 7 - 1
    slow = torch.stack([torch.stack([t[i] for i in range(30) if group[i] == g]).mean(0) for g in range(6)])
    assert torch.allclose(group_means(t, group), slow, atol=1e-15)


def test_far_apart_clouds_are_found() -> None:
    x, y = blobs()
    found, labels = cluster_means((x, y), 4, seeded())
    slow = {(round(float(p[0]), 3), round(float(p[1]), 3)) for p in x.view(4, 20, 2).mean(1)}
    assert {(round(float(p[0]), 3), round(float(p[1]), 3)) for p in found} == slow
    assert labels.tolist() == [int(p[1] > 25) for p in found]


@pytest.mark.parametrize("k", [1, 2, 7, 30])
def test_every_point_ends_with_its_nearest_mean(k: int) -> None:
    x = torch.randn(30, 3, dtype=torch.float64, generator=seeded())
    group = k_means(x, k, seeded())
    assert group.bincount(minlength=k).min() >= 1
    assert len(group.unique()) == k
    spread = float((x - group_means(x, group)[group]).square().sum())
    drawn = torch.cdist(x, x[torch.randperm(30, generator=seeded())[:k]]).argmin(1)
    if k in (2, 7):  # better than the draw it began with
        assert spread < float((x - group_means(x, drawn)[drawn]).square().sum())
    assert k < 30 or spread == 0


def test_equal_points_leave_no_group_empty() -> None:
    group = k_means(torch.ones(9, 2), 5, seeded())
    assert sorted(group.unique().tolist()) == list(range(5))


def test_groups_have_one_label_and_shares_in_proportion() -> None:
    x, y = torch.randn(120, 3), torch.tensor([3] * 90 + [7] * 29 + [9])
    group = assign_groups(x, y, 13, seeded())
    labels = [set(y[group == g].tolist()) for g in range(13)]
    assert all(len(own) == 1 for own in labels)
    assert [sum(own == {label} for own in labels) for label in (3, 7, 9)] == [9, 3, 1]


def test_fewer_groups_than_labels_leave_the_rarest_out() -> None:
    x, y = cluster_means((torch.randn(9, 2), torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2])), 2, seeded())
    assert sorted(y.tolist()) == [1, 2]
    assert x.shape == (2, 2)


def test_shares_are_never_more_than_there_are() -> None:
    assert proportional_shares([1, 1, 8], 9) == [1, 1, 7]
    assert proportional_shares([2, 0, 3], 99) == [2, 0, 3]
    assert proportional_shares([], 5) == []


def test_no_share_would_be_nearer_to_the_proportion_with_one_more() -> None:
    rng = random.Random(0)
    for _ in range(50):
        sizes = [rng.randint(1, 60) for _ in range(rng.randint(2, 6))]
        n = rng.randint(len(sizes), sum(sizes))
        shares = proportional_shares(sizes, n)
        assert sum(shares) == n
        for (size, s), (other, t) in itertools.permutations(zip(sizes, shares, strict=True), 2):
            # to move one from a share of s > 1 to one of t would make the larger of their ratios to the sizes larger
            assert s == 1 or t == other or size**2 * t * (t + 1) >= other**2 * s * (s - 1)


@pytest.mark.parametrize("choose", ["uniform", "balanced"])
@pytest.mark.parametrize("loader", [False, True])
def test_a_memory_keeps_so_many_means(choose: str, loader: bool) -> None:
    x, y = blobs()
    data = DataLoader(TensorDataset(x, y), 16) if loader else (x, y)
    memory = ExampleMemory(nn.Linear(2, 2), per_task=4)
    memory.remember(data, choose=choose, merge=20, generator=seeded())  # type: ignore[arg-type]
    assert memory.task_sizes == (4,)
    distances = torch.cdist(kept(memory)[0], x.view(4, 20, 2).mean(1))
    assert len(distances.argmin(1).unique()) == 4
    assert float(distances.min(1).values.max()) < 0.02  # kept in float16


def test_outputs_are_those_of_the_means_as_they_are_kept() -> None:
    x, y = torch.rand(200, 6), torch.arange(200) % 3
    model = nn.Linear(6, 3)
    memory = ExampleMemory(model, per_task=10)
    memory.remember((x, y), merge=5)
    stored, _, z = kept(memory)
    assert torch.equal(z, model(stored).detach())


def test_means_of_images_take_the_bytes_of_images() -> None:
    x, y = torch.randint(256, (100, 3, 8, 8)) / 255, torch.arange(100) % 2
    x = (x - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    sizes = []
    for merge in (1, 4):
        memory = ExampleMemory(model, per_task=10)
        memory.remember((x, y), merge=merge)
        sizes.append(memory.nbytes)
    assert sizes[1] <= sizes[0]
    exact = cluster_means((x.double(), y), 10, seeded())[0]
    group = assign_groups(x.flatten(1), y, 10, seeded())
    assert float((exact - group_means(x.double(), group)).abs().max()) <= 0.5 / 255 / 0.2 + 1e-6


def test_means_of_few_values_are_not_rounded() -> None:
    x, y = torch.eye(20)[torch.randint(20, (400,))], torch.zeros(400).long()
    found = cluster_means((x, y), 8, seeded())[0]
    assert torch.allclose(found.sum(1), torch.ones(8))
    assert torch.equal(found, group_means(x, assign_groups(x, y, 8, seeded())))


def test_one_number_per_example_and_labels_as_a_column() -> None:
    x, y = torch.tensor([0.0, 1.0, 8.0, 9.0]), torch.tensor([[0], [0], [1], [1]])
    found, labels = cluster_means(({"age": x, "more": x[:, None]}, y), 2, seeded())
    assert sorted(found["age"].tolist()) == [0.5, 8.5]
    assert labels.tolist() == [int(age > 4) for age in found["age"]]


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_large_numbers_are_grouped_as_small_ones(offset: float) -> None:
    x = torch.cat([torch.zeros(100, 30), torch.ones(100, 30)]).double() + torch.randn(200, 30).double() * 0.01 + offset
    found = cluster_means((x, None), 2, seeded())[0]
    assert sorted((found - offset).mean(1).round().tolist()) == [0.0, 1.0]


def test_small_whole_numbers_do_not_overflow() -> None:
    memory = ExampleMemory(nn.Linear(3, 2))
    memory.remember((torch.randn(900, 3), torch.arange(900) % 2), per_task=6, merge=np.uint8(50))
    assert memory.task_sizes == (6,)
    assert float(kept(memory)[0].norm(dim=1).max()) < 2  # means of fifty each, not of seven


def test_inputs_of_several_tensors_without_labels() -> None:
    class Sum(nn.Linear):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return super().forward(pair[0] + pair[1])

    memory = ExampleMemory(Sum(3, 2), per_task=6)
    memory.remember(((torch.randn(60, 3), torch.randn(60, 3)), None), merge=4)
    assert memory.task_sizes == (6,)


def test_targets_of_a_regression_are_averaged() -> None:
    x = torch.arange(8.0)[:, None]
    found, y = cluster_means((x, 10 * x), 2, seeded())
    assert torch.allclose(y, 10 * found)


def test_less_data_than_asked_for_is_all_kept() -> None:
    memory = ExampleMemory(nn.Linear(3, 2), per_task=50)
    memory.remember((torch.randn(20, 3), torch.arange(20) % 2), merge=5)
    assert memory.task_sizes == (20,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x, y: m.remember((x, y), merge=0), "merge must be a whole number, 1 or more, not 0"),
        (lambda m, x, y: m.remember((x, y), merge=2.5), "merge must be a whole number"),
        (lambda m, x, y: ExampleMemory(m.model, None).remember((x, y), merge=3), "merge=3 needs a number as per_task="),
        (lambda m, x, y: m.remember((x.long(), y), merge=3), "merge= keeps means of inputs, and some are int64"),
        (lambda m, x, y: m.remember((x, y[:, None].expand(-1, 2)), merge=3), "merge= needs one label"),
        (lambda m, x, y: m.remember((x, {"a": y, "b": y}), merge=3), "merge= needs one label .* a dict"),
    ],
)
def test_errors_say_what_would_be_right(call: Callable[..., None], words: str) -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    memory = ExampleMemory(nn.Linear(3, 2), per_task=5)
    with pytest.raises(ValueError, match=words):
        call(memory, x, y)
    assert len(memory) == 0


def test_batches_of_several_shapes_are_refused() -> None:
    class Mean(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mean(1))

    ragged = [(torch.randn(4, n, 3), torch.arange(4) % 2) for n in (5, 6)]
    memory = ExampleMemory(Mean(3, 2), per_task=2)
    with pytest.raises(ValueError, match="examples of one shape"):
        memory.remember(DataLoader(ragged, batch_size=None), merge=4)  # type: ignore[arg-type]


def test_the_same_seed_keeps_the_same_means() -> None:
    x, y, model = torch.randn(300, 4), torch.arange(300) % 3, nn.Linear(4, 3)
    found = []
    for _ in range(2):
        memory = ExampleMemory(model, per_task=20)
        memory.remember((x, y), merge=5, generator=seeded(5))
        found.append(kept(memory)[0])
    assert torch.equal(*found)


@pytest.fixture
def benchmark() -> benchmarks.Benchmark:
    x, y = torch.rand(500, 6, generator=seeded()), torch.arange(500) % 4
    return benchmarks.from_datasets([((x, y), (x, y))] * 2)


def finished(model: StackedMLP, benchmark: benchmarks.Benchmark) -> FinishedTask:
    return FinishedTask(benchmark.tasks[0], model, 1, 10, benchmark.outputs, seed=0)


def test_a_run_of_the_laboratory_keeps_the_same_whoever_trains_beside_it(benchmark: benchmarks.Benchmark) -> None:
    both, alone = (StackedMLP([6, 8, 4], runs=runs, seed=0) for runs in ([3, 5], [5]))
    batch = finished(both, benchmark).draw(12, "uncertain", 5)
    assert torch.equal(batch.x[1:], finished(alone, benchmark).draw(12, "uncertain", 5).x)
    assert batch.target.sum(-1).unique().tolist() == [1.0]


def test_the_laboratory_keeps_what_a_memory_would(benchmark: benchmarks.Benchmark) -> None:
    task = finished(StackedMLP([6, 8, 4], runs=[0], seed=0), benchmark)
    drawn = task.draw(60)
    batch = task.draw(12, "uniform", 5)
    spread = torch.cdist(drawn.x[0], batch.x[0]).min(1).values.square().mean()
    assert float(spread) < 0.5 * float((drawn.x[0] - drawn.x[0].mean(0)).square().sum(1).mean())
    same = {tuple(row) for row in batch.target[0].tolist()}
    assert same == {tuple(row) for row in torch.eye(4).tolist()}


@pytest.mark.parametrize("method", [ER, DER])
def test_methods_keep_means(method: type[ER], benchmark: benchmarks.Benchmark) -> None:
    model, made = StackedMLP([6, 8, 4], runs=[0], seed=0), method(per_task=10, merge=5)
    made.begin(model, 0)
    made.end_task(finished(model, benchmark))
    assert made.buffer.stored is not None
    assert torch.equal(made.buffer.stored.x, finished(model, benchmark).draw(10, "uniform", 5).x)
    assert not torch.equal(made.buffer.stored.x, finished(model, benchmark).draw(10).x)
