"""Models that `fully_shard` divides: memories protect them as they protect one process's model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from ogd.memory import ExampleMemory
from two_ranks import on_ranks, results

Case = dict[str, Any]
STEPS = 4


class Network(nn.Module):
    """Sizes that two ranks cannot halve, an embedding, a convolution, a layer norm and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.mix = nn.Conv1d(6, 5, 3, padding=1)
        self.norm = nn.LayerNorm(5)
        self.hidden = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 7))
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.mix(self.words(x).mT).relu().mT)
        return self.head((self.hidden(h) * self.scale).mean(1))


def network(dtype: torch.dtype = torch.float64) -> Network:
    torch.manual_seed(0)
    return Network().to(dtype)


def tasks(lengths: tuple[int, ...] = (4,), n: int = 12) -> list[list[tuple[Tensor, Tensor]]]:
    """Two tasks; in each a batch for every length of the sequences."""
    torch.manual_seed(1)
    return [[(torch.randint(11, (n, length)), torch.randint(3, (n,))) for length in lengths] for _ in range(2)]


def shard(model: Network, **options: Any) -> Network:
    if dist.is_initialized():
        fully_shard(model.hidden, **options)
        fully_shard(model.mix, **options)
        fully_shard(model, **options)
    return model


def whole_weights(model: nn.Module) -> Tensor:
    params = [p.detach() for p in model.parameters()]
    return torch.cat([(p.full_tensor() if hasattr(p, "full_tensor") else p).flatten() for p in params])


def sgd(params: Any) -> optim.Optimizer:
    return optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params: Any) -> optim.Optimizer:
    return optim.Adam(params, lr=0.01)


def train(model: nn.Module, optimizer: optim.Optimizer, data: list[tuple[Tensor, Tensor]], mean: bool = True) -> None:
    """Steps on batches of 8 of which each rank has its part; FSDP takes the mean over the ranks, or their sum."""
    r, N = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for step in range(STEPS):
        x, y = data[step % len(data)]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[:8][r::N]), y[:8][r::N])
        (loss if mean else loss / N).backward()
        optimizer.step()


def half(data: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """What a rank passes to remember: its half; in one process, the halves one after the other."""
    ranks = [dist.get_rank()] if dist.is_initialized() else [0, 1]
    return [(x[r::2], y[r::2]) for r in ranks for x, y in data]


def rehearsed(make: Callable[..., optim.Optimizer], options: Case, fsdp: Case, lengths: tuple[int, ...]) -> Case:
    fsdp = dict(fsdp)
    divisor = fsdp.pop("divisor", None)
    model = shard(network(), **fsdp)
    if divisor is not None and dist.is_initialized():
        for module in (model, model.hidden, model.mix):
            module.set_gradient_divide_factor(divisor)
    memory, optimizer = ExampleMemory(model, None), make(model.parameters())
    rehearsal = memory.protect(optimizer, **options)
    for data in tasks(lengths):
        train(model, optimizer, data, mean=divisor is None)
        memory.remember(half(data))
    train(model, optimizer, tasks(lengths)[1], mean=divisor is None)
    with torch.no_grad():
        model(tasks(lengths)[0][0][0])  # leaves the root's parameters whole
    stats = memory.stats()
    return {"w": whole_weights(model), "sizes": memory.task_sizes, "bounded": rehearsal.bounded, "stats": stats}


@pytest.mark.parametrize(
    ("make", "options", "fsdp", "lengths"),
    [
        (sgd, {"every": 2, "batch_size": 7}, {}, (4,)),
        (adam, {"every": 1, "batch_size": 1}, {"reshard_after_forward": False}, (4,)),
        (adam, {"every": 1, "batch_size": 3, "bound": 0.05}, {"reshard_after_forward": True}, (3, 4)),
        (sgd, {"every": 1, "batch_size": 5, "bound": None}, {"divisor": 1.0}, (3, 4)),
    ],
    ids=["momentum", "a rank without a share", "bounded, two forms", "a sum over the ranks"],
)
def test_rehearsal_is_that_of_one_process(
    tmp_path: Path, make: Callable[..., optim.Optimizer], options: Case, fsdp: Case, lengths: tuple[int, ...]
) -> None:
    alone = rehearsed(make, options, fsdp, lengths)
    for answer in results(on_ranks(tmp_path, rehearsed, make, options, fsdp, lengths)):
        torch.testing.assert_close(answer["w"], alone["w"], rtol=0, atol=1e-12)
        assert (answer["sizes"], answer["bounded"]) == (alone["sizes"], alone["bounded"])
        assert answer["stats"].drift == pytest.approx(alone["stats"].drift, rel=1e-9)
    assert (alone["bounded"] > 0) == (options.get("bound", 2.0) is not None)
