"""Which examples the laboratory's methods keep: balanced, uncertain, hardest, herding."""

import pytest
import torch
from torch import Generator

from ogd.lab import benchmarks
from ogd.lab.methods import DER
from ogd.lab.methods.finished_task import FLOOR, FinishedTask, choose_rows, entropies, herd, uncertain_order
from ogd.lab.models import StackedMLP


def test_entropies_are_those_of_torchs_distribution() -> None:
    z = torch.randn(50, 7, dtype=torch.float64) * 3
    expected = torch.distributions.Categorical(logits=z).entropy()
    assert torch.allclose(entropies(z).double(), expected, atol=1e-6)


def test_entropies_outside_a_head() -> None:
    z = torch.tensor([[1.0, 1.0, -torch.inf], [0.0, 60.0, -torch.inf]])
    assert torch.allclose(entropies(z), torch.tensor([2.0, 1.0]).log())


def test_uncertain_examples_are_drawn_in_proportion_to_their_weights() -> None:
    H, generator = torch.tensor([0.0, 0.1, 0.5, 1.0]), Generator().manual_seed(0)
    first = torch.tensor([int(uncertain_order(H, 1, generator)) for _ in range(4_000)]).bincount(minlength=4) / 4_000
    weights = H + FLOOR
    assert torch.allclose(first.double(), (weights / weights.sum()).double(), atol=0.03)


def test_uncertain_order_repeats_none_and_takes_all_there_are() -> None:
    assert sorted(uncertain_order(torch.zeros(5), 5, Generator()).tolist()) == list(range(5))


def test_herding_equals_a_slow_search() -> None:
    p = torch.rand(40, 5, dtype=torch.float64)
    rows: list[int] = []
    for _ in range(10):
        left = [i for i in range(40) if i not in rows]
        rows.append(min(left, key=lambda i: float((p[[*rows, i]].mean(0) - p.mean(0)).square().sum())))
    assert herd(p, 10).tolist() == rows


def test_balanced_rows_have_as_many_of_each_class() -> None:
    y = torch.arange(100) % 5
    rows = choose_rows("balanced", torch.zeros(100, 5), y, 20, Generator().manual_seed(0))
    assert y[rows].bincount().tolist() == [4] * 5
    assert rows.tolist() != sorted(rows.tolist())


def finished(model: StackedMLP, benchmark: benchmarks.Benchmark) -> FinishedTask:
    return FinishedTask(benchmark.tasks[0], model, 1, 10, benchmark.outputs, seed=0)


@pytest.fixture
def benchmark() -> benchmarks.Benchmark:
    generator = Generator().manual_seed(0)
    x, y = torch.rand(500, 6, generator=generator), torch.arange(500) % 4
    return benchmarks.from_datasets([((x, y), (x, y))] * 2)


@pytest.mark.parametrize("choose", ["balanced", "uncertain", "hardest", "herding"])
def test_a_run_keeps_the_same_examples_whoever_trains_beside_it(choose: str, benchmark: benchmarks.Benchmark) -> None:
    both = StackedMLP([6, 8, 4], runs=[3, 5], seed=0)
    alone = StackedMLP([6, 8, 4], runs=[5], seed=0)
    batch = finished(both, benchmark).draw(12, choose)
    assert torch.equal(batch.x[1:], finished(alone, benchmark).draw(12, choose).x)
    assert batch.target.shape == (2, 12, 4)
    assert len(batch.x[0].unique(dim=0)) == 12


def test_uncertain_examples_are_more_uncertain_than_uniform_ones(benchmark: benchmarks.Benchmark) -> None:
    model = StackedMLP([6, 8, 4], runs=[0, 1], seed=0)
    with torch.no_grad():
        torch._foreach_mul_(list(model.params.values()), 8.0)

    def mean(choose: str) -> float:
        z = model.passing(finished(model, benchmark).draw(20, choose).x)[1]
        return float(entropies(z.flatten(0, 1)).mean())

    assert mean("uniform") < mean("uncertain") < mean("hardest")


def test_der_keeps_what_was_chosen(benchmark: benchmarks.Benchmark) -> None:
    model, method = StackedMLP([6, 8, 4], runs=[0], seed=0), DER(per_task=10, choose="hardest")
    method.begin(model, 0)
    method.end_task(finished(model, benchmark))
    assert method.buffer.stored is not None
    assert torch.equal(method.buffer.stored.x, finished(model, benchmark).draw(10, "hardest").x)
