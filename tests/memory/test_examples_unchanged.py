"""What is stored stays as it is, bit for bit, whatever comes later; how it comes changes neither it nor its size."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ogd.memory import ExampleMemory, load
from ogd.memory.examples import prefetch
from ogd.memory.examples.packing import join, pack

PIXELS = torch.arange(256) / 255
SHAPE = (2, 9, 9)


def images(low: int = 0, high: int = 256, scale: float = 1.0, shift: float = 0.0) -> Callable[[int], Tensor]:
    return lambda n: PIXELS[torch.randint(low, high, (n, *SHAPE))] * scale + shift


def channels(n: int) -> Tensor:
    """256 values in each channel."""
    return PIXELS[torch.randint(256, (n, *SHAPE))] * torch.tensor([1.0, 2.5]).view(2, 1, 1) - 0.3


def normal(scale: float = 1.0, mean: float = 0.0) -> Callable[[int], Tensor]:
    return lambda n: mean + scale * torch.randn(n, *SHAPE)


FLOATS: dict[str, Callable[[int], Tensor]] = {
    "palette": images(),
    "part of the palette": images(40, 90),
    "values next to it": images(0, 128, 0.5, 0.001),
    "another palette": images(scale=3.3),
    "channels": channels,
    "float16": lambda n: torch.rand(n, *SHAPE) - 0.5,
    "exact in float16": lambda n: torch.randn(n, *SHAPE).half().float(),
    "float32": normal(1e6),
    "small spread": normal(0.1, 1000.0),
    "large spread": lambda n: 500 * (torch.rand(n, *SHAPE) - 0.5),
    "constant": lambda n: torch.full((n, *SHAPE), 1000.1),
    "zeros of both signs": lambda n: torch.where(torch.rand(n, *SHAPE) > 0.5, 0.0, -0.0),
    "zero": lambda n: torch.zeros(n, *SHAPE),
    "tiny": normal(1e-41),
    "infinite": lambda n: torch.where(torch.rand(n, *SHAPE) > 0.5, 0.1, -torch.inf),
}
WHOLE: dict[str, Callable[[int], Tensor]] = {
    "bytes": lambda n: torch.randint(256, (n, *SHAPE)),
    "negative": lambda n: torch.randint(-100, 3, (n, *SHAPE)),
    "tokens": lambda n: torch.randint(50_000, (n, *SHAPE)),
    "large": lambda n: torch.randint(2**40, (n, *SHAPE)),
}
KINDS = {
    "float32": FLOATS,
    "float64": {name: lambda n, make=make: make(n).double() * 1.000001 for name, make in FLOATS.items()},
    "int64": WHOLE,
}


def bits(t: Tensor) -> bytes:
    return t.contiguous().numpy().tobytes() + str(t.dtype).encode()


def stored(memory: ExampleMemory) -> dict[int, tuple[bytes, bytes]]:
    """Input and outputs of each example, by the number that it has as its label."""
    found: dict[int, tuple[bytes, bytes]] = {}
    for batch in memory.examples.batches(torch.arange(len(memory))):
        assert batch.y is not None
        found |= {int(y): (bits(x), bits(z)) for x, y, z in zip(batch.x, batch.y, batch.z, strict=True)}
    assert len(found) == len(memory)
    return found


def memory_of(**options: object) -> ExampleMemory:
    """Of a model of one output: labels are no classes, so they can number the examples."""
    memory = ExampleMemory(nn.Linear(162, 1), **{"logits": logits, **options})  # type: ignore[arg-type]
    assert isinstance(memory, ExampleMemory)
    return memory


def logits(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.flatten(1).float().clamp(-1, 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", KINDS)
def test_joined_parts_are_as_they_were(dtype: str) -> None:
    torch.manual_seed(0)
    for (_, one), (_, two), n, m in itertools.product(KINDS[dtype].items(), KINDS[dtype].items(), (1, 5), (1, 5)):
        a, b = pack(one(n)), pack(two(m))
        whole = join(a, b)
        apart = a.nbytes + b.nbytes
        assert whole is None or bits(whole[:]) == bits(torch.cat([a[:], b[:]]))
        assert whole is None or whole.nbytes <= apart + 8 * 256
    assert all(join(pack(make(50)), pack(make(60))) is not None for make in KINDS[dtype].values())


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_later_tasks_change_nothing(dtype: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    memory, before, number = memory_of(budget=60, shrink=True), {}, 0
    kinds = random.Random(seed).sample(2 * list(KINDS[dtype].values()), 2 * len(KINDS[dtype]))
    for step, make in enumerate(kinds):
        n = (1, 2, 9)[step % 3]
        memory.remember((make(n), torch.arange(number, number := number + 100 * n, 100)))
        after = stored(memory)
        assert all(before[i] == after[i] for i in before.keys() & after.keys())
        assert max(memory.stats().drift) < 1e-6
        before = after
        if step % 4 == 3:
            memory.forget(step // 4 % len(memory.task_sizes))
            memory.save(tmp_path / "m")
            memory = load(tmp_path / "m", memory.model, logits=logits)
            after = stored(memory)
            assert after.items() <= before.items()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dtype", KINDS)
def test_one_kind_after_another_changes_nothing(dtype: str, stream: bool) -> None:
    torch.manual_seed(0)
    for one, two in itertools.permutations(KINDS[dtype].values(), 2):
        memory = memory_of(per_task=40)
        for start, n in ((0, 30), (30, 1)):
            new = one(n), torch.arange(start, start + n)
            memory.observe(*new) if stream else memory.remember(new)
        before = stored(memory)
        new = two(20), 1000 + torch.arange(20)
        memory.observe(*new) if stream else memory.remember(new)
        after = stored(memory)
        assert len(before) == 31
        assert len(before.keys() & after.keys()) > 5
        assert all(before[i] == after[i] for i in before.keys() & after.keys())
        assert max(memory.stats().drift) < 1e-6


@pytest.mark.parametrize("name", FLOATS)
def test_how_many_come_at_a_time_makes_no_difference(name: str) -> None:
    torch.manual_seed(0)
    data = list(zip(FLOATS[name](20), torch.arange(20), strict=True))
    found = []
    for size in (1, 3, 20):
        torch.manual_seed(0)
        memory = memory_of(per_task=None)
        memory.remember(DataLoader(data, size))
        found.append((memory.nbytes, stored(memory), len(memory.examples.groups)))
        assert memory.stats().drift[0] < 1e-6  # outputs are those for the inputs as stored
    inputs = [{i: x for i, (x, _) in those.items()} for _, those, _ in found]
    assert inputs[0] == inputs[1] == inputs[2]
    assert len({nbytes for nbytes, *_ in found}) == 1
    assert {lots for *_, lots in found} == {1}


@pytest.mark.parametrize(
    ("make", "size", "most"),
    [
        (lambda n: torch.randint(17, (n, 8, 8)) / 16, 1, 65),
        (lambda n: torch.randint(17, (n, 8, 8)) / 16.1, 1, 65),
        (lambda n: torch.randint(256, (n, 1, 28, 28)) / 255 - 0.4, 1, 784 + 6),
        (lambda n: torch.rand(n, 20) - 0.5, 16, 40),
    ],
    ids=["digits", "other digits", "images", "table"],
)
def test_a_stream_is_stored_in_few_bytes(make: Callable[[int], Tensor], size: int, most: int) -> None:
    """Even if one example comes at a time; `most` is for an input, and a label and two outputs take 9 bytes."""
    torch.manual_seed(0)
    model = nn.LazyLinear(2)
    model(make(1).flatten(1))
    memory = ExampleMemory(model, 200, logits=lambda m, x: m(x.flatten(1)))
    for _ in range(400 // size):
        memory.observe(make(size), torch.zeros(size).long())
    assert memory.nbytes / len(memory) <= most + 9


@pytest.mark.parametrize("name", FLOATS)
def test_a_model_that_changes_its_inputs_changes_nothing_stored(name: str) -> None:
    torch.manual_seed(0)
    memory = memory_of(logits=lambda m, x: logits(m, x.clamp_(-1, 1).mul_(0.5)))
    x = FLOATS[name](20)
    given = x.clone()
    memory.remember((x, torch.arange(20)))
    memory.remembered_loss(7)
    assert max(memory.stats().drift) < 1e-6
    assert bits(x) == bits(given)
    (batch,) = memory.examples.batches(torch.arange(20))
    torch.testing.assert_close(batch.x, given, atol=1e-3, rtol=1e-3)


def test_inputs_packed_differently_go_through_the_model_at_once() -> None:
    torch.manual_seed(0)
    memory = memory_of()
    for make in FLOATS.values():
        memory.remember((make(3).clamp(-9, 9), torch.full((3,), 7)))
    assert len(memory.examples.groups) > 3
    passes = []
    handle = memory.model.register_forward_pre_hook(lambda _, args: passes.append(len(args[0])))
    for size in (1, 20, 99):
        memory.remembered_loss(size)
    handle.remove()
    assert passes == [1, 20, 3 * len(FLOATS)]
    ready = prefetch.Prefetcher()
    for number in range(20):
        rows = prefetch.draw(0, number, len(memory), 8)
        found = ready.batch(memory.examples, 0, number, 8)
        (alone,) = memory.examples.batches(rows)
        each = [next(iter(memory.examples.batches(row))) for row in rows.split(1)]
        for batch in (found, alone):
            assert bits(batch.x) == bits(torch.cat([one.x for one in each]))
            assert bits(batch.z) == bits(torch.cat([one.z for one in each]))
