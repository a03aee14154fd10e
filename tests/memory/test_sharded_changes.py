"""What several ranks hold changes alike on all of them: tasks forgotten and shrunk, changed models, paces chosen."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.utils import prune

from memory_models import make, train
from ogd.memory import GradientMemory, Memory
from ogd.memory.projection.sharding import whole_store
from reference import flat, trainable
from two_ranks import on_ranks, results


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def projected(memory: Memory) -> Tensor:
    named = memory.model.named_parameters()
    return flat(list(memory.project({n: torch.linspace(-1, 2, p.numel()).view_as(p).to(p) for n, p in named}).values()))


def forgotten(sharded: bool) -> list[Any]:
    model, x, y = make("mlp", n=12)
    memory = GradientMemory(model, outputs="all", sharded=sharded)
    for part in (slice(0, 6), slice(6, 7), slice(7, 12)):  # the second is on one rank
        memory.remember((x[part], y[part]))
    found: list[Any] = [projected(memory)]
    for task in (0, -1, 0):
        memory.forget(task)
        found += [
            projected(memory),
            memory.rank,
            memory.task_sizes,
            memory.store.rows_per_example,
            sorted(memory.store.shapes),
        ]
    return found


@pytest.mark.parametrize("sharded", [False, True])
def test_a_task_is_forgotten_on_all_ranks(tmp_path: Path, sharded: bool) -> None:
    one, two = results(on_ranks(tmp_path, forgotten, sharded))
    for here, there, alone in zip(one, two, forgotten(False), strict=True):
        if isinstance(alone, Tensor):
            assert torch.equal(here, there)
            torch.testing.assert_close(here, alone, rtol=0, atol=1e-9)
        else:
            assert here == there == alone


def shrunk(budget: int | str, sharded: bool, outputs: Any) -> list[Any]:
    """Parts of 9 and 3 examples: the ranks' generators are not in the same state once the examples are drawn."""
    model, x, y = make("mlp", n=24)
    torch.manual_seed(rank())
    memory = GradientMemory(model, 8, budget=budget, shrink=True, outputs=outputs, sharded=sharded)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    sizes = []
    for start in (0, 12):
        mine = slice(start, start + 12)
        if dist.is_initialized():
            mine = slice(start, start + 9) if rank() == 0 else slice(start + 9, start + 12)
        memory.remember((x[mine], y[mine]))
        train(model, optimizer, x, y, 2)
        sizes.append(memory.task_sizes)
    state = memory.state_dict()
    again = GradientMemory(model, budget=5 if outputs == "true" else 15, shrink=True, outputs=outputs, sharded=sharded)
    again.load_state_dict(state)
    return [
        (
            sizes,
            memory.store.rows_per_example,
            again.task_sizes,
            whole_store(memory.store, {}).fingerprint,
            whole_store(again.store, {}).fingerprint,
        ),
        flat(trainable(model)),
        memory.nbytes,
    ]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("budget", "outputs"), [(10, "true"), (31, "all"), ("2000B", "true")])
def test_ranks_shrink_to_the_same_examples(tmp_path: Path, sharded: bool, budget: int | str, outputs: str) -> None:
    (one, w, nbytes), (two, w_2, nbytes_2) = results(on_ranks(tmp_path, shrunk, budget, sharded, outputs))
    alone, _, whole = shrunk(budget, sharded, outputs)
    assert one == two
    assert torch.equal(w, w_2)
    assert one[:3] == alone[:3]  # the numbers; the examples are another draw
    assert nbytes + nbytes_2 == whole * (1 if sharded else 2)
    if isinstance(budget, str):
        assert one[0][-1] < (8, 8)
        assert whole <= 2000


def balanced() -> tuple[list[int], int]:
    model, x, _ = make("mlp", n=40)
    y = torch.tensor([0] * 30 + [1] * 7 + [2] * 3)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    part = slice(0, 15) if rank() == 0 else slice(15, 40)
    memory = GradientMemory(model, 99)
    memory.remember((x[part], y[part]), per_task=12, choose="balanced")
    bias = next(piece.block for piece in memory.store.pieces for piece in piece.only({f"{len(model) - 1}.bias"}))
    return bias.rows(0, 12).argmax(1).bincount(minlength=3).tolist(), len(memory)


def test_labels_are_balanced_over_all_ranks(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, balanced))
    assert one == two
    counts, n = one
    assert n == 12
    assert counts[2] == 3
    assert sorted(counts[:2]) == [4, 5]


def one_example() -> tuple[list[str], list[bool]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    memory = GradientMemory(model)
    memory.remember((torch.ones(1, 4).double(), torch.tensor([0])))
    before = model[1].running_mean.clone()
    model(torch.randn(8, 4).double())
    return sorted(memory._statistics.names), [torch.equal(before, model[1].running_mean)]


def test_a_rank_without_a_share_keeps_the_same_statistics(tmp_path: Path) -> None:
    assert results(on_ranks(tmp_path, one_example)) == [(["1"], [True])] * 2


def paced(sharded: bool) -> tuple[Tensor, list[int]]:
    model, x, y = make("mlp", n=8)
    memory = GradientMemory(model, sharded=sharded)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every="auto")
    memory.remember((x, y))
    chosen = []
    for _ in range(60):
        train(model, optimizer, x + 1, y, 1)
        chosen.append(protection.every)
    memory.settle()
    return flat(trainable(model)), chosen


@pytest.mark.parametrize("sharded", [False, True])
def test_ranks_choose_one_pace(tmp_path: Path, sharded: bool) -> None:
    (one, k), (two, k_2) = results(on_ranks(tmp_path, paced, sharded))
    assert k == k_2
    assert torch.equal(one, two)


def own_pace() -> int:
    model, x, y = make("mlp", n=8)
    memory = GradientMemory(model, distributed=False)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every="auto")
    if rank() == 0:
        memory.remember((x, y))
        train(model, optimizer, x, y, 40)
    return len(memory)


def test_a_pace_of_its_own_waits_for_nobody(tmp_path: Path) -> None:
    assert results(on_ranks(tmp_path, own_pace)) == [8, 0]


def changed_model(how: str, sharded: bool) -> tuple[Tensor, int]:
    model, x, y = make("mlp", n=5)
    memory = GradientMemory(model, sharded=sharded)
    memory.remember((x[:4], y[:4]))
    memory.remember((x[4:], y[4:]))  # on one rank
    if how == "grown":
        old = model[-1]
        model[-1] = nn.Linear(old.in_features, old.out_features + 2).double()
        with torch.no_grad():
            for new, known in zip(model[-1].parameters(), old.parameters(), strict=True):
                new.zero_()
                new[: len(known)] = known
    elif how == "pruned":
        prune.l1_unstructured(model[0], "weight", 0.3)
    else:
        model.insert(0, nn.Identity())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(model, optimizer, x + 1, y, 3)
    assert (memory.store.sharded == "rows") == (sharded and dist.is_initialized())
    return flat(trainable(model)), memory.rank


@pytest.mark.parametrize("how", ["grown", "pruned", "moved"])
def test_models_that_change_under_a_sharded_memory(tmp_path: Path, how: str) -> None:
    (one, n), (two, n_2) = results(on_ranks(tmp_path, changed_model, how, True))
    alone, n_alone = changed_model(how, False)
    assert torch.equal(one, two)
    assert n == n_2 == n_alone
    torch.testing.assert_close(one, alone, rtol=0, atol=1e-9)
