"""Each rank keeps some rows of G: whole and sharded memories project, count and are saved alike."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn import functional

from memory_models import MODELS, make, rows
from ogd.memory import GradientMemory, load
from reference import flat, project_dense, trainable
from two_ranks import on_ranks, results


def projected_by(name: str, sharded: bool) -> dict[str, Any]:
    model, x, y = make(name, n=7)
    memory = GradientMemory(model, outputs="all" if name == "mlp" else "true", sharded=sharded)
    update = {n: torch.randn(p.shape, generator=torch.Generator().manual_seed(i)).double()
              for i, (n, p) in enumerate(model.named_parameters())}  # fmt: skip
    after = []
    for part in (slice(0, 4), slice(4, 5), slice(5, 7)):  # the second leaves one rank without a share
        memory.remember((x[part], y[part]))
        after.append(flat(list(memory.project(update).values())))
    return {"after": after, "rank": memory.rank, "tasks": memory.task_sizes, "bytes": memory.nbytes, "u": update}


def every_model_sharded_and_whole() -> dict[str, dict[bool, dict[str, Any]]]:
    return {name: {sharded: projected_by(name, sharded) for sharded in (False, True)} for name in MODELS}


def test_every_model_projects_alike_whole_and_sharded(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, every_model_sharded_and_whole))
    for name, both in one.items():
        whole, sharded = both[False], both[True]
        model, x, y = make(name, n=7)
        memory = GradientMemory(model, outputs="all" if name == "mlp" else "true")
        memory.remember((x, y))
        expected = project_dense(rows(memory), flat(list(whole["u"].values())))
        torch.testing.assert_close(whole["after"][-1], expected, rtol=0, atol=1e-9)
        assert whole["bytes"] == sharded["bytes"] + two[name][True]["bytes"]
        for there, answer in itertools.product((one, two), (False, True)):
            assert (there[name][answer]["rank"], there[name][answer]["tasks"]) == (whole["rank"], whole["tasks"])
            for mine, expected in zip(there[name][answer]["after"], whole["after"], strict=True):
                torch.testing.assert_close(mine, expected, rtol=0, atol=1e-9)


def a_head_added_later(sharded: bool) -> Tensor:
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Linear(12, 9), "a": nn.Linear(9, 3), "b": nn.Linear(9, 3)}).double()
    x, y = torch.randn(6, 12).double(), torch.randint(3, (6,))
    memory = GradientMemory(model, sharded=sharded)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=2)
    for head in ("a", "b", "a"):
        for _ in range(5):
            optimizer.zero_grad()
            functional.cross_entropy(model[head](model["body"](x).tanh()), y).backward()
            optimizer.step()
        n = 1 if head == "b" else 6  # all of the second task's rows are on one rank
        memory.remember((x[:n], y[:n]), logits=lambda m, x, head=head: m[head](m["body"](x).tanh()))
    return flat(trainable(model))


@pytest.mark.parametrize("sharded", [False, True])
def test_heads_and_several_tasks(tmp_path: Path, sharded: bool) -> None:
    one, two = results(on_ranks(tmp_path, a_head_added_later, sharded))
    assert torch.equal(one, two)
    torch.testing.assert_close(one, a_head_added_later(sharded), rtol=0, atol=1e-9)


def columns_in_turn(sharded: bool) -> list[Tensor]:
    """P for some parameters, then for more of them, where only one rank has rows: K of fewer columns must not serve."""
    model, x, y = make("mlp", n=3)
    memory = GradientMemory(model, sharded=sharded)
    update = {n: torch.linspace(-1, 2, p.numel()).double().view(p.shape) for n, p in model.named_parameters()}
    found = []
    for i in range(3):
        memory.remember((x[i : i + 1], y[i : i + 1]))
        for names in (["0.weight"], ["0.weight", "2.weight"], ["2.bias"], list(update)):
            found += list(memory.project({name: update[name] for name in names}).values())
    return found


def test_columns_that_are_asked_for_in_turn(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, columns_in_turn, True))
    for here, there, alone in zip(one, two, columns_in_turn(False), strict=True):
        torch.testing.assert_close(here, alone, rtol=0, atol=1e-9)
        assert torch.equal(here, there)


def over_budget(sharded: bool) -> tuple[list[int], int]:
    model, x, y = make("mlp", n=8)
    kept = []
    size = GradientMemory(model, None, distributed=False)
    size.remember((x, y))
    for budget in (7, 8, f"{size.nbytes - 1}B", f"{size.nbytes}B"):
        memory = GradientMemory(model, budget=budget, sharded=sharded)
        try:
            memory.remember((x, y))
        except ValueError:
            assert memory.nbytes == 0
        kept.append(len(memory))
    return kept, memory.nbytes


@pytest.mark.parametrize("sharded", [False, True])
def test_a_budget_counts_the_whole_memory(tmp_path: Path, sharded: bool) -> None:
    one, two = results(on_ranks(tmp_path, over_budget, sharded))
    assert one[0] == two[0] == [0, 8, 0, 8]


def saved_and_loaded(folder: Path, sharded: bool) -> tuple[int, int, Tensor, str]:
    model, x, y = make("mlp", n=9)
    memory = GradientMemory(model, sharded=sharded)
    memory.remember((x[:6], y[:6]))
    memory.remember((x[6:], y[6:]))
    memory.save(folder / "memory.safetensors")
    dist.barrier()
    again = load(folder / "memory.safetensors", model, sharded=not sharded)
    again.remember((x[:3] + 1, y[:3]))
    other = copy.deepcopy(memory)
    other.remember((x[:3] + 1, y[:3]))
    update = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    for one, two in zip(again.project(update).values(), other.project(update).values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    projected = flat(list(memory.project(update).values()))
    return memory.nbytes, again.nbytes, projected, repr(memory)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_saved_file_is_whole(tmp_path: Path, sharded: bool) -> None:
    answers = results(on_ranks(tmp_path, saved_and_loaded, tmp_path, sharded))
    model, _, _ = make("mlp", n=9)
    memory = load(tmp_path / "memory.safetensors", model)
    update = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    alone = flat(list(memory.project(update).values()))
    whole = sum(nbytes for nbytes, *_ in answers) if sharded else answers[0][0]
    assert (len(memory), memory.task_sizes, memory.nbytes) == (9, (6, 3), whole)
    assert sum(again for _, again, *_ in answers) == memory.nbytes * 12 / 9 * (2 if sharded else 1)
    for _, _, projected, _ in answers:
        torch.testing.assert_close(projected, alone, rtol=0, atol=1e-9)


def sharded_from_a_whole_memory() -> tuple[int, Tensor]:
    """As if the first task had been remembered before init_process_group: its rows are dealt out at the next."""
    model, x, y = make("mlp", n=9)
    memory = GradientMemory(model, sharded=True, distributed=False)
    memory.remember((x[:5], y[:5]))
    memory.distributed = True
    memory.remember((x[5:], y[5:]))
    held = sum(t.untyped_storage().nbytes() for p in memory.store.pieces for t in p.block.tensors().values())
    assert held == memory.nbytes
    return memory.nbytes, flat(
        list(memory.project({n: torch.ones_like(p) for n, p in model.named_parameters()}).values())
    )


def sharded_from_different_memories() -> tuple[str, int]:
    model, x, y = make("mlp", n=9)
    r = dist.get_rank()
    memory = GradientMemory(model, sharded=True, distributed=False)
    memory.remember((x[r : r + 5], y[r : r + 5]))
    memory.distributed = True
    with pytest.raises(RuntimeError, match="different memories") as caught:
        memory.remember((x, y))
    return str(caught.value), len(memory)


def test_different_memories_are_not_dealt_out(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, sharded_from_different_memories))
    assert one == two
    assert one[1] == 5


def test_a_whole_memory_becomes_sharded(tmp_path: Path) -> None:
    (a, one), (b, two) = results(on_ranks(tmp_path, sharded_from_a_whole_memory))
    model, x, y = make("mlp", n=9)
    memory = GradientMemory(model)
    memory.remember((x, y))
    assert a + b == memory.nbytes
    for projected in (one, two):
        alone = flat(list(memory.project({n: torch.ones_like(p) for n, p in model.named_parameters()}).values()))
        torch.testing.assert_close(projected, alone, rtol=0, atol=1e-9)
