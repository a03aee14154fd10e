"""Several ranks rehearse as one process would: each takes its part of the batch from the memory that all have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from memory_models import make
from ogd.memory import ExampleMemory
from reference import flat, trainable
from two_ranks import on_ranks, results

Case = dict[str, Any]


def adam(model: nn.Module) -> optim.Optimizer:
    return optim.Adam(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> optim.Optimizer:
    first, *rest = model.parameters()
    return optim.SGD([{"params": rest}, {"params": first, "lr": 0.2}], lr=0.02, momentum=0.9)


def trained(
    give: str, options: Case, make_optimizer: Callable[[nn.Module], optim.Optimizer] = adam
) -> tuple[Tensor, tuple[int, ...], bytes, int, int]:
    """20 steps over the same global batches on any number of ranks, after two tasks."""
    model, x, y = make("mlp", n=24, dtype=torch.float32)
    _, x2, y2 = make("mlp", n=160, seed=1, dtype=torch.float32)
    r, N, call = 0, 1, model
    torch.manual_seed(0)
    if dist.is_initialized():
        r, N = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(r)  # as people do
        call = DistributedDataParallel(model)
    memory = ExampleMemory(call, None)
    assert isinstance(memory, ExampleMemory)
    optimizer = make_optimizer(model)
    rehearsal = memory.protect(optimizer, **options)
    for data in ((x, y), (x2[:10], y2[:10])):
        memory.remember(part(*data, give))
    for step in range(20):
        batch = slice(8 * step + r, 8 * step + 8, N)
        optimizer.zero_grad()
        functional.cross_entropy(call(x2[batch]), y2[batch]).backward()
        optimizer.step()
    memory.settle()
    w = flat(trainable(model))
    return w, memory.task_sizes, memory.examples.fingerprint, memory.draws, rehearsal.bounded


def part(x: Tensor, y: Tensor, give: str) -> tuple[Tensor, Tensor]:
    """What a rank passes to remember: its half, or all; of one process, the halves one after the other."""
    halves = [(x[r::2], y[r::2]) for r in range(2)]
    if dist.is_initialized():
        return halves[dist.get_rank()] if give == "half" else (x, y)
    return torch.cat([x for x, _ in halves]), torch.cat([y for _, y in halves])


@pytest.mark.parametrize(
    ("options", "make_optimizer"),
    [
        ({"every": 2, "batch_size": 7}, adam),
        ({"every": 1, "batch_size": 1}, adam),
        ({"every": 2, "batch_size": 7, "bound": 1.2}, sgd),
    ],
    ids=["rehearsal", "a batch smaller than the ranks", "bounded, two learning rates"],
)
def test_two_ranks_are_as_one_process(
    tmp_path: Path, options: Case, make_optimizer: Callable[[nn.Module], optim.Optimizer]
) -> None:
    alone = trained("half", options, make_optimizer)
    one, two = results(on_ranks(tmp_path, trained, "half", options, make_optimizer))
    assert torch.equal(one[0], two[0])
    assert one[1:] == two[1:] == alone[1:]
    assert alone[-1] > 0 or "bound" not in options
    torch.testing.assert_close(one[0], alone[0], rtol=0, atol=1e-5)


def test_ranks_that_give_the_same_data_keep_it_once(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, trained, "all", {"every": 2}))
    assert torch.equal(one[0], two[0])
    assert one[1:] == two[1:]
    assert one[1] == (24, 10)


def different() -> None:
    model, x, y = make("mlp")
    memory = ExampleMemory(model, distributed=False)
    for _ in range(dist.get_rank()):
        memory.remember((x, y))
    memory.distributed = True
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    optimizer.step()


def test_different_memories_are_told_on_all_ranks(tmp_path: Path) -> None:
    for answer in on_ranks(tmp_path, different):
        assert isinstance(answer, str)
        assert "the ranks hold different memories" in answer
        assert "rank 0 holds 0 examples" in answer
        assert "rank 1 holds 6 examples" in answer


def merged() -> None:
    model, x, y = make("mlp")
    ExampleMemory(model).remember((x, y), merge=2)


def test_means_are_refused_on_all_ranks(tmp_path: Path) -> None:
    for answer in on_ranks(tmp_path, merged):
        assert isinstance(answer, str)
        assert "merge=2 is for one process: with several ranks use merge=1" in answer


def alone() -> int:
    model, x, y = make("mlp", n=5 + dist.get_rank())
    memory = ExampleMemory(model, distributed=False)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    for _ in range(3 * dist.get_rank()):
        optimizer.step()
    return len(memory)


def sparse() -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    x, y = torch.randint(20, (6, 3)), torch.randint(3, (6,))
    memory = ExampleMemory(model)
    memory.remember((x, y))
    optimizers = [optim.SparseAdam(model[0].parameters(), lr=0.1), optim.SGD(model[2].parameters(), lr=0.1)]
    memory.protect(optimizers, every=1)
    for _ in range(3):
        for p in model.parameters():
            p.grad = None
        functional.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    return flat(trainable(model))


def test_memories_of_their_own_and_sparse_gradients(tmp_path: Path) -> None:
    assert results(on_ranks(tmp_path, alone)) == [5, 6]
    one, two = results(on_ranks(tmp_path, sparse))
    assert torch.equal(one, two)
    torch.testing.assert_close(one, sparse(), rtol=0, atol=1e-5)
