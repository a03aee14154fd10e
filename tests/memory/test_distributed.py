"""Several ranks hold one memory and project alike: real processes, each with its part of the data or all of it."""

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, optim
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from memory_models import make, rows, train
from ogd.memory import GradientMemory, Memory
from reference import flat, trainable
from two_ranks import on_ranks, results


def loader(x: Tensor, y: Tensor, give: str) -> object:
    """What a rank passes to remember: its own part, by a sampler or by hand, or all of the data."""
    dataset, r = TensorDataset(x, y), dist.get_rank() if dist.is_initialized() else 0
    if give == "sampler" and dist.is_initialized():
        return DataLoader(dataset, 4, sampler=DistributedSampler(dataset))
    if give == "part" and dist.is_initialized():
        return x[r::2], y[r::2]
    return {"loader": DataLoader(dataset, 4, shuffle=True), "dataset": dataset}.get(give, (x, y))


def trained(
    give: str, per_task: int | None, every: int, sharded: bool, kind: str = "sgd", protect: bool = True
) -> tuple[Tensor, Memory]:
    """50 protected steps over the same global batches on any number of ranks, after two tasks."""
    model, x, y = make("mlp", n=24, dtype=torch.float32)
    _, x2, y2 = make("mlp", n=400, seed=1, dtype=torch.float32)
    if dist.is_initialized():
        r, N = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(r)  # as people do
        call = DistributedDataParallel(model)
    else:
        r, N, call = 0, 1, model
    memory = GradientMemory(model, per_task, sharded=sharded)
    memory.remember(loader(x, y, give))
    memory.remember(loader(x2[:10], y2[:10], give))
    optimizer = OPTIMIZERS[kind](model.parameters())
    if protect:
        memory.protect(optimizer, every)
    for step in range(50):
        batch = slice(8 * step + r, 8 * step + 8, N)
        train(call, optimizer, x2[batch], y2[batch], 1)
    memory.settle()
    return flat(trainable(model)), memory


def zero(params: Any, **options: Any) -> optim.Optimizer:
    if not dist.is_initialized():
        return optim.Adam(params, **options)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # it warns of its own use of TorchScript

    return ZeroRedundancyOptimizer(params, optim.Adam, **options)


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9),
    "adam": lambda ps: optim.Adam(ps, lr=0.01),
    "zero": lambda ps: zero(ps, lr=0.01),
}


def weights_and_sizes(*options: Any) -> tuple[Tensor, tuple[int, ...], int]:
    weights, memory = trained(*options)
    return weights, memory.task_sizes, memory.nbytes


@pytest.mark.parametrize(
    ("give", "every", "sharded", "kind"),
    [
        ("sampler", 1, False, "sgd"),
        ("part", 7, False, "adam"),
        ("same", 1, False, "adam"),
        ("loader", 7, False, "sgd"),
        ("sampler", 7, True, "adam"),
        ("dataset", 1, True, "sgd"),
        ("part", 1, False, "zero"),
        ("same", 7, True, "zero"),
    ],
)
def test_two_ranks_are_one_process(tmp_path: Path, give: str, every: int, sharded: bool, kind: str) -> None:
    options = (give, None, every, sharded, kind)
    (one, tasks, nbytes), (two, tasks_2, nbytes_2) = results(on_ranks(tmp_path, weights_and_sizes, *options))
    alone, memory = trained(*options)
    free, _ = trained(*options, False)
    assert torch.equal(one, two)
    assert (one - alone).abs().max() < 1e-5
    assert (one - free).abs().max() > 1e-2
    assert tasks == tasks_2 == memory.task_sizes == (24, 10)
    assert nbytes == nbytes_2 == memory.nbytes / (2 if sharded else 1)


def own_part_and_the_same() -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """G of 9 examples of 24, drawn from what each rank was given, with how many of them this rank differentiated."""
    found = {}
    for give in ("sampler", "part", "same", "loader", "dataset"):
        model, x, y = make("mlp", n=24)
        torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
        seen: list[int] = []
        memory = GradientMemory(model, 9, logits=lambda m, x, seen=seen: (seen.append(len(x)), m(x))[1], chunk_size=100)
        memory.remember(loader(x, y, give))
        found[give] = rows(memory), sum(seen)
    return found


def test_per_task_counts_all_ranks_and_every_example_is_differentiated_once(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, own_part_and_the_same))
    model, x, y = make("mlp", n=24)
    whole = GradientMemory(model, None)
    whole.remember((x, y))
    G, alone = rows(whole), own_part_and_the_same()
    for give, (drawn, seen) in one.items():
        assert torch.equal(drawn, two[give][0])
        assert sorted([seen, two[give][1]]) == [4, 5]
        which = torch.cdist(drawn, G).argmin(1)
        torch.testing.assert_close(drawn, G[which], rtol=0, atol=1e-12)
        assert len(which.unique()) == len(which) == 9
        if give in ("same", "loader", "dataset"):  # with all data on all ranks it is one process's own draw
            assert set(which.tolist()) == set(torch.cdist(alone[give][0], G).argmin(1).tolist())
        else:
            assert sorted([int((which % 2 == r).sum()) for r in (0, 1)]) == [4, 5] or give == "sampler"


def wrapped_with_buffers() -> Tensor:
    """DDP sends its buffers round at each forward pass: with an odd number of examples the ranks would not meet."""
    model, x, y = make("resnet", n=8)
    wrapped = DistributedDataParallel(model)
    memory = GradientMemory(wrapped, 3, chunk_size=1)
    optimizer = optim.SGD(wrapped.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    wrapped.eval()
    for _ in range(3):
        train(wrapped, optimizer, x[dist.get_rank() :: 2], y[dist.get_rank() :: 2], 2)
        memory.remember((x, y))
    assert "forward" not in vars(wrapped)
    return flat(trainable(model))


def test_a_wrapped_model_with_buffers(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, wrapped_with_buffers))
    assert torch.equal(one, two)


def each_for_itself() -> int:
    model, x, y = make("mlp", n=4)
    memory = GradientMemory(model, distributed=False)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    if dist.get_rank() == 0:
        memory.remember((x, y))
        train(model, optimizer, x, y, 2)
    return len(memory)


def test_ranks_that_share_nothing_wait_for_nobody(tmp_path: Path) -> None:
    assert results(on_ranks(tmp_path, each_for_itself)) == [4, 0]


def test_a_process_alone_talks_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_gather_object", "all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, None)
    assert torch.isfinite(trained("same", 5, 3, sharded=True)[0]).all()
    assert len(results(on_ranks(tmp_path, weights_and_sizes, "same", 5, 3, True, ranks=1))) == 1


class Noisy(Dataset[Any]):
    """Copies of the data on all ranks that look different: each rank adds noise of its own."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i] + 1e-9 * dist.get_rank(), self.y[i]


def augmented() -> Tensor:
    model, x, y = make("mlp", n=24)
    memory = GradientMemory(model, 12)
    memory.remember(DataLoader(Noisy(x, y), 4, shuffle=True))
    return rows(memory)


def test_augmented_copies_give_different_examples(tmp_path: Path) -> None:
    one, two = results(on_ranks(tmp_path, augmented))
    assert torch.equal(one, two)
    model, x, y = make("mlp", n=24)
    whole = GradientMemory(model)
    whole.remember((x, y))
    assert len(torch.cdist(one, rows(whole)).argmin(1).unique()) == 12


def the_page(port: int) -> list[tuple[Tensor, tuple[int, ...]]]:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": dist.get_rank(), "WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in meeting.items()})
    dist.barrier()  # who is still joining the old group would find it closed
    dist.destroy_process_group()  # the page makes its own
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    found, scope = [], dict[str, Any]()
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(block, "distributed.md", "exec"), scope)
        weights = [p.full_tensor() if isinstance(p, DTensor) else p for p in trainable(scope["model"])]
        found.append((flat(weights), scope["memory"].task_sizes))
    assert isinstance(next(iter(scope["model"].parameters())), DTensor)
    return found


def test_the_page_runs_on_two_ranks(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    replicated, sharded = zip(*results(on_ranks(tmp_path, the_page, port)), strict=True)
    for (one, tasks), (two, _) in (replicated, sharded):
        assert torch.equal(one, two)
        assert tasks == (100, 100)
