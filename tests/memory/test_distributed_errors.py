"""Ranks that differ, a rank that fails, parameters that are sharded: every rank raises, and nothing is stored."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from memory_models import make, rows, train
from ogd.memory import ExampleMemory, GradientMemory
from reference import flat, trainable
from test_distributed import zero
from two_ranks import on_ranks, results


def different_stores(sharded: bool) -> dict[str, str]:
    """Ranks whose memories differ, each way they can, and what the first protected step says."""
    model, x, y = make("mlp", n=8)
    r, said = dist.get_rank(), {}
    for how in ("numbers", "rows", "empty"):
        own = GradientMemory(model, None, distributed=False)
        if how != "empty" or r == 0:
            n = {"numbers": slice(r, r + 4), "rows": slice(0, 4 + r), "empty": slice(0, 4)}[how]
            own.remember((x[n], y[n]))
        memory = GradientMemory(model, sharded=sharded)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        before = flat(trainable(model))
        try:
            memory.load_state_dict(own.state_dict())
            memory.protect(optimizer, every=1)
            train(model, optimizer, x, y, 1)
        except RuntimeError as error:
            said[how] = str(error)
        assert torch.equal(flat(trainable(model)), before)
    return said


@pytest.mark.parametrize("sharded", [False, True])
def test_the_first_protected_step_raises_where_stores_differ(tmp_path: Path, sharded: bool) -> None:
    one, two = results(on_ranks(tmp_path, different_stores, sharded))
    assert one == two
    assert set(one) == {"numbers", "rows", "empty"}
    assert "rank 0 holds 4 directions" in one["rows"]
    assert "rank 1 holds 5 directions" in one["rows"]
    assert all("call remember on all ranks" in said for said in one.values())


def bad_share() -> tuple[list[str], int, Tensor]:
    """Rank 1's part of the data is of no use, in each way; afterwards the memory works as before."""
    model, x, y = make("mlp", n=8)
    r, said = dist.get_rank(), []
    memory = GradientMemory(model, None)
    memory.remember((x[:2], y[:2]))
    parts: list[Any] = [
        (x[4:], y[4:].double()),
        (x[4:], y[4:] + 100),
        (x[4:] * float("nan"), y[4:]),
        (x[4:], y[5:]),
        {"x": x},
    ]
    for part in parts:
        try:
            memory.remember((x[:4], y[:4]) if r == 0 else part)
        except (ValueError, TypeError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    memory.remember((x[:4], y[:4]))
    return said, len(memory), rows(memory)


def test_an_error_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    (there, n, G), (here, m, H) = results(on_ranks(tmp_path, bad_share))
    assert n == m == 6
    assert torch.equal(G, H)
    assert len(here) == 5
    for own, others in zip(here, there, strict=True):
        assert others.startswith("RuntimeError: rank 1 could not ")
        assert others.endswith(f", so no rank did: {own}")


def refused() -> list[str]:
    """What is said of fully_shard after remember, of a part or with other options, and of overlapping ZeRO."""
    model, x, y = make("mlp", n=4)
    before = GradientMemory(model)
    before.remember((x, y))
    part, *_ = make("mlp")
    fully_shard(part[0])
    fully_shard(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    other, *_ = make("mlp")
    said = []
    for act in (
        lambda: before.protect(optimizer, every=1),
        lambda: GradientMemory(model, sharded=True).remember((x, y)),
        lambda: GradientMemory(model, distributed=False).remember((x, y)),
        lambda: ExampleMemory(model, distributed=False).protect(optimizer),
        lambda: GradientMemory(model).explain((x, y)),
        lambda: GradientMemory(part).remember((x, y)),
        lambda: GradientMemory(other).protect(zero(other.parameters(), lr=0.1, overlap_with_ddp=True)),
    ):
        try:
            act()
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_fsdp_cannot_do_is_refused_with_what_to_do(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, refused))
    assert one == two
    wanted = (
        "apply it first; or save the memory before", "so leave it out", "leave it out", "leave it out",
        "before fully_shard", "2.weight is not divided", "overlap_with_ddp=False",
    )  # fmt: skip
    assert len(one) == len(wanted)
    assert all(words in said for words, said in zip(wanted, one, strict=True)), one


def test_the_older_fsdp_is_refused_too() -> None:
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # it cannot be made without an accelerator
    nn.Module.__init__(wrapper)
    wrapper.inside = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"0 is a FullyShardedDataParallel.*fully_shard"):
        GradientMemory(nn.Sequential(wrapper)).remember((torch.randn(2, 3), torch.tensor([0, 1])))


def test_zero_3_is_refused() -> None:
    model = nn.Linear(3, 2)
    model.weight.ds_id = 0  # as DeepSpeed marks a parameter of which the rank has a part
    with pytest.raises(ValueError, match=r"ZeRO-3.*use fully_shard .* ZeroRedundancyOptimizer"):
        ExampleMemory(model).remember((torch.randn(2, 3), torch.tensor([0, 1])))
