"""Models that `fully_shard` divides: memories protect them as they protect one process's model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn, optim
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, default_collate

from ogd.memory import ExampleMemory, GradientMemory, Memory, load
from ogd.memory.examples import rehearsal_gradient
from ogd.memory.optimizers.rehearsal_hooks import Rehearsal
from two_ranks import on_ranks, results

Case = dict[str, Any]
STEPS = 4


class Network(nn.Module):
    """Sizes that two ranks cannot halve; an embedding, a convolution, a norm, and a parameter that is used twice."""

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
        return self.head((self.hidden(h) * self.scale + self.scale).mean(1))


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
    divisor, small = fsdp.pop("divisor", None), fsdp.pop("small", rehearsal_gradient.SMALL)
    model = shard(network(), **fsdp)
    if divisor is not None and dist.is_initialized():
        for module in (model, model.hidden, model.mix):
            module.set_gradient_divide_factor(divisor)
    memory, optimizer = ExampleMemory(model, None), make(model.parameters())
    rehearsal = memory.protect(optimizer, **options)
    with patch.object(rehearsal_gradient, "SMALL", small):
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
        (sgd, {"every": 1, "batch_size": 9}, {"small": 0}, (4,)),
    ],
    ids=["momentum", "a rank without a share", "bounded, two forms", "a sum over the ranks", "micro-batches"],
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


def item_loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def item_outputs(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0])


def as_tuple(items: list[Any]) -> Any:
    return default_collate(items)


def items_rehearsed(batch_size: int, outputs: bool, folder: Path | None = None) -> Case:
    """Two tasks with collate functions of their own, so that a batch of six items has two forward passes."""
    model = shard(network())
    functions = {"loss": item_loss} | ({"outputs": item_outputs} if outputs else {})
    memory, optimizer = ExampleMemory(model, None, **functions), adam(model.parameters())
    rehearsal = memory.protect(optimizer, every=1, batch_size=batch_size)
    for data, collate in zip(tasks(n=6), (default_collate, as_tuple), strict=True):
        train(model, optimizer, data)
        items = [item for x, y in half(data) for item in zip(x, y, strict=True)]
        memory.remember(DataLoader(items, 3, collate_fn=collate))
    train(model, optimizer, tasks()[1])
    if folder is not None:
        memory.save(folder / "items.safetensors")
    found = {"w": whole_weights(model), "u": whole_update(memory), "sizes": memory.task_sizes}
    return found | {"drift": memory.stats().drift, "rehearsals": rehearsal.rehearsals}


@pytest.mark.parametrize(("batch_size", "outputs"), [(6, False), (1, True)], ids=["two functions", "an empty share"])
def test_items_are_rehearsed_as_in_one_process(tmp_path: Path, batch_size: int, outputs: bool) -> None:
    alone = items_rehearsed(batch_size, outputs)
    for answer in results(on_ranks(tmp_path, items_rehearsed, batch_size, outputs, tmp_path)):
        torch.testing.assert_close(answer["w"], alone["w"], rtol=0, atol=1e-12)
        torch.testing.assert_close(2 * answer["u"], alone["u"], rtol=0, atol=1e-12)  # the mean of the ranks' parts
        assert (answer["sizes"], answer["rehearsals"]) == (alone["sizes"], alone["rehearsals"])
        assert answer["drift"] == pytest.approx(alone["drift"], rel=1e-9)
    model = network()
    functions = {"loss": item_loss, "collate": default_collate} | ({"outputs": item_outputs} if outputs else {})
    torch.nn.utils.vector_to_parameters(alone["w"], model.parameters())
    again = load(tmp_path / "items.safetensors", model, **functions)
    assert again.stats().drift == pytest.approx(alone["drift"], rel=1e-9)


def accumulated() -> tuple[Tensor, str]:
    """A step of two backward passes, of which FSDP reduces only the last; then one that is never reduced."""
    model, said = shard(network()), ""
    memory, optimizer = ExampleMemory(model, None), sgd(model.parameters())
    memory.protect(optimizer, every=1, bound=None)
    (x, y), r, N = tasks()[0][0], 0, 1
    memory.remember(half([(x, y)]))
    if dist.is_initialized():
        r, N = dist.get_rank(), dist.get_world_size()
    for last in (False, True):
        if dist.is_initialized():
            model.set_requires_gradient_sync(last)
        batch = slice(4 * last + r, 4 * last + 4, N)
        functional.cross_entropy(model(x[batch]), y[batch]).backward()
    before = [p.grad.clone() for p in model.parameters()]
    memory.remembered_loss(4)  # a forward pass leaves the gradients alone
    assert all(bool((p.grad == g).all()) for p, g in zip(model.parameters(), before, strict=True))
    optimizer.step()
    weights = whole_weights(model)
    if dist.is_initialized():
        model.set_requires_gradient_sync(False)
        try:
            optimizer.step()
        except RuntimeError as error:
            said = str(error)
    return weights, said


def test_gradients_that_are_accumulated_count_once(tmp_path: Path) -> None:
    alone, _ = accumulated()
    for weights, said in results(on_ranks(tmp_path, accumulated)):
        torch.testing.assert_close(weights, alone, rtol=0, atol=1e-12)
        assert "set_requires_gradient_sync(True)" in said


def checkpointed(folder: Path, kind: type[Memory], load_only: bool) -> Case:
    """A memory through torch.distributed.checkpoint, as users save it beside the model; and through its own file."""
    model = shard(network())
    memory, optimizer = kind(model, None), adam(model.parameters())
    protection = memory.protect(optimizer, every=3)
    how: Case = {"checkpoint_id": folder / "checkpoint", "no_dist": not dist.is_initialized()}
    if not load_only:
        for data in tasks((3, 4), n=6):
            memory.remember(half(data))
        train(model, optimizer, tasks((3, 4))[1])
        memory.settle()
        dcp.save({"model": model.state_dict(), "memory": memory}, **how)
        memory.save(folder / "memory.safetensors")
        u = whole_update(memory)
    else:
        state = {"model": model.state_dict(), "memory": memory}
        dcp.load(state, **how)
        model.load_state_dict(state["model"])
        again = load(folder / "memory.safetensors", model)
        u = whole_update(memory)
        assert torch.equal(u, whole_update(again))
    progress = protection.progress if isinstance(protection, Rehearsal) else None
    return {"sizes": memory.task_sizes, "w": whole_weights(model), "u": u, "progress": progress}


def whole_update(memory: Memory) -> Tensor:
    """What the memory makes of an update of ones: for examples, the gradient of the remembered loss."""
    model = memory.model
    if isinstance(memory, GradientMemory):
        update = memory.project({name: torch.ones_like(p) for name, p in model.named_parameters()})
    else:
        model.zero_grad()
        memory.remembered_loss(6).backward()
        update = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad()
    return torch.cat([(u.full_tensor() if hasattr(u, "full_tensor") else u).flatten() for u in update.values()])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # in one process
@pytest.mark.parametrize("kind", [ExampleMemory, GradientMemory])
@pytest.mark.parametrize("ranks", [(2, 1), (1, 2)])
def test_a_checkpoint_is_loaded_on_another_number_of_ranks(
    tmp_path: Path, ranks: tuple[int, int], kind: type[Memory]
) -> None:
    def run(n: int, load_only: bool) -> Case:
        args = tmp_path, kind, load_only
        return checkpointed(*args) if n == 1 else results(on_ranks(tmp_path, checkpointed, *args))[1]

    saved, loaded = (run(n, bool(i)) for i, n in enumerate(ranks))
    assert torch.equal(saved.pop("w"), loaded.pop("w"))
    scale = 1 if kind is GradientMemory else ranks[1] / ranks[0]  # FSDP takes the mean of the ranks' parts of a loss
    torch.testing.assert_close(saved.pop("u"), loaded.pop("u") * scale, rtol=0, atol=1e-12)
    assert saved == loaded


def projected(make: Callable[..., optim.Optimizer], outputs: str, every: int, folder: Path | None = None) -> Case:
    model = shard(network())
    memory, optimizer = GradientMemory(model, None, outputs=outputs), make(model.parameters())
    memory.protect(optimizer, every=every)
    for data in tasks((3, 4), n=6):
        train(model, optimizer, data)
        memory.remember(half(data))
    train(model, optimizer, tasks((3, 4))[1])
    memory.settle()
    if folder is not None:
        memory.save(folder / "memory.safetensors")
    found = {"w": whole_weights(model), "u": whole_update(memory), "sizes": memory.task_sizes, "bytes": memory.nbytes}
    return found | {"drift": memory.stats().drift, "rank": memory.rank}


@pytest.mark.parametrize(("make", "outputs", "every"), [(sgd, "true", 1), (adam, "all", 3)])
def test_projection_is_that_of_one_process(
    tmp_path: Path, make: Callable[..., optim.Optimizer], outputs: str, every: int
) -> None:
    alone = projected(make, outputs, every)
    one, two = results(on_ranks(tmp_path, projected, make, outputs, every, tmp_path))
    for answer in (one, two):
        torch.testing.assert_close(answer["w"], alone["w"], rtol=0, atol=1e-12)
        torch.testing.assert_close(answer["u"], alone["u"], rtol=0, atol=1e-11)
        assert answer["bytes"] < alone["bytes"]
        assert (answer["sizes"], answer["rank"]) == (alone["sizes"], alone["rank"])
        assert answer["drift"] == pytest.approx(alone["drift"], abs=1e-9)
    model = network()
    torch.nn.utils.vector_to_parameters(one["w"], model.parameters())
    memory = load(tmp_path / "memory.safetensors", model)  # a file is whole, and without a warning of other weights
    assert (memory.task_sizes, memory.rank) == (alone["sizes"], alone["rank"])
    torch.testing.assert_close(whole_update(memory), alone["u"], rtol=0, atol=1e-11)
