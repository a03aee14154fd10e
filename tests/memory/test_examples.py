"""Examples kept in few bytes: what is packed comes back, tasks share a budget, and what cannot be kept is refused."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memory_models import LeNet, make
from ogd.memory import BudgetExceeded, ExampleMemory, GradientMemory, LongWork, Memory
from ogd.memory.examples import prefetch
from ogd.memory.examples.packing import join, pack

PIXELS = torch.arange(256) / 255


def kept(model: nn.Module, *tasks: Any, **options: Any) -> ExampleMemory:
    memory = ExampleMemory(model, **options)
    assert isinstance(memory, ExampleMemory)
    for data in tasks:
        memory.remember(data)
    return memory


def loss(memory: ExampleMemory) -> Tensor:
    found = memory.remembered_loss(5)
    assert found is not None
    return found.detach()


def channels(n: int) -> Tensor:
    """Images normalised by channel: 256 values in each, 768 in all."""
    codes = torch.randint(256, (n, 3, 9, 9))
    return (PIXELS[codes] - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)


EXACT = {
    "bytes": (lambda n: torch.randint(256, (n, 7)), torch.uint8),
    "labels": (lambda n: torch.randint(-100, 3, (n,)), torch.int16),
    "tokens": (lambda n: torch.randint(50_000, (n, 4)) + 300, torch.int32),
    "large": (lambda n: torch.full((n, 2), 2**40), torch.int64),
    "int8": (lambda n: torch.randint(-128, 128, (n, 2), dtype=torch.int8), torch.int8),
    "bools": (lambda n: torch.rand(n, 3) > 0.5, torch.bool),
    "bfloat16": (lambda n: torch.randn(n, 3).bfloat16(), torch.bfloat16),
    "complex": (lambda n: torch.randn(n, 3, dtype=torch.complex64), torch.complex64),
    "image": (lambda n: PIXELS[torch.randint(256, (n, 1, 20, 20))], torch.uint8),
    "image, double": (lambda n: PIXELS[torch.randint(256, (n, 400))].double() * 2 - 1, torch.uint8),
    "channels": (channels, torch.uint8),
    "masked": (lambda n: torch.where(torch.rand(n, 5) > 0.5, 0.0, -torch.inf), torch.float32),
    "beyond float16": (lambda n: torch.randn(n, 300) * 1e6, torch.float32),
    "small beside its mean": (lambda n: 1000 + torch.randn(n, 300), torch.float32),
    "and a constant": (lambda n: (1000 + torch.randn(n, 300)).index_fill(1, torch.tensor([7]), 1), torch.float32),
}


@pytest.mark.parametrize("name", EXACT)
def test_packed_tensors_come_back_exactly(name: str) -> None:
    torch.manual_seed(0)
    make_, dtype = EXACT[name]
    for n in (4, 5, 9):
        parts = [make_(n), make_(n), make_(1)]
        for t in parts[:2]:
            small = pack(t)
            assert small.data.dtype == dtype
            assert (small[:].dtype, small[:].shape) == (t.dtype, t.shape)
            assert torch.equal(small[:], t)
            assert torch.equal(small[torch.tensor([2, 0])], t[[2, 0]])
            assert torch.equal(small.select(torch.tensor([3]))[:], t[[3]])
            assert not t.numel() or small.data.data_ptr() != t.data_ptr()  # the user may change his
        whole = join(pack(parts[0]), pack(parts[1]))
        assert whole is not None
        assert torch.equal(whole[:], torch.cat(parts[:2]))
        assert whole.data.dtype == dtype
        more = join(whole, pack(parts[2]))
        assert more is None or torch.equal(more[:], torch.cat(parts))
        assert more is not None or name in ("bytes", "labels", "tokens")  # one example may need fewer bytes


@pytest.mark.parametrize(("values", "dtype"), [
    ([0, 255], torch.uint8), ([0, 256], torch.int16), ([-1, 0], torch.int16), ([-(2**15), 2**15 - 1], torch.int16),
    ([-(2**15) - 1], torch.int32), ([2**15], torch.int32), ([-(2**31), 2**31 - 1], torch.int32),
    ([2**31], torch.int64), ([-(2**31) - 1], torch.int64), ([], torch.int64),
])  # fmt: skip
def test_whole_numbers_take_the_smallest_type_that_holds_them(values: list[int], dtype: torch.dtype) -> None:
    t = torch.tensor(values, dtype=torch.int64)
    small = pack(t)
    assert small.data.dtype == dtype
    assert torch.equal(small[:], t)
    if dtype == torch.int16:  # which is no smaller than itself
        assert pack(t.short()).data.dtype == torch.int16
        assert pack(t.int()).data.dtype == torch.int16


@pytest.mark.parametrize(("values", "coded"), [(2, True), (256, True), (257, False)])
@pytest.mark.parametrize("shape", [(40, 60), (2400,), (10, 2, 120)])
def test_a_palette_has_up_to_256_values(values: int, coded: bool, shape: tuple[int, ...]) -> None:
    t = torch.linspace(-1, 1, values, dtype=torch.float64).repeat(2400)[:2400].view(shape)
    assert (pack(t).palette is not None) is coded
    if coded:
        assert torch.equal(pack(t)[:], t)
        assert pack(t).nbytes == 8 * values + 2400


def test_a_palette_pays_only_where_there_are_more_numbers_than_values() -> None:
    for n in (256, 341, 342):  # 4 n bytes, or n and the 4 · 256 of the palette
        small = pack(torch.linspace(0, 1, 256).repeat(2)[:n])
        assert (small.palette is not None) is (n == 342)


def test_other_numbers_lose_less_than_a_thousandth_of_their_spread() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 20) * 10 ** torch.linspace(-3, 3, 20)
    small = pack(x)
    assert small.data.dtype == torch.float16
    assert ((small[:] - x).abs().amax(0) <= 1e-3 * x.std(0)).all()
    assert torch.equal(pack(small[:])[:], small[:])  # once
    again = join(small, small.select(torch.tensor([3])))
    assert again is not None
    assert again.data.dtype == torch.float16
    assert join(small, pack(x[:1])) is None  # of one example nobody knows the spread
    year = torch.where(torch.arange(20) == 4, 2024.3, x)  # the same in all examples, but perhaps not in other tasks
    assert pack(year).data.dtype == torch.float32


def test_a_feature_without_a_spread_does_not_decide() -> None:
    torch.manual_seed(0)
    fine, coarse = torch.randn(50, 20), 1000 + torch.randn(50, 20)
    for x in (fine, coarse):
        x[:, 3] = 1 / 3
    assert pack(fine).data.dtype == torch.float16
    assert pack(coarse).data.dtype == torch.float32


def test_joined_palettes_are_one_palette_or_stay_apart() -> None:
    torch.manual_seed(0)
    few = [PIXELS[torch.randint(low, low + 100, (9, 200))] for low in (0, 80)]
    whole = join(*map(pack, few))
    assert whole is not None
    assert whole.palette is not None
    assert len(whole.palette) == 180
    assert torch.equal(whole[:], torch.cat(few))
    many = [pack(PIXELS[torch.randint(256, (9, 100))] * s) for s in (1, 3.3)]
    assert all(part.palette is not None for part in many)
    assert join(*many) is None


def test_repr_stats_and_explanation() -> None:
    torch.manual_seed(0)
    model, x, y = LeNet(), PIXELS[torch.randint(256, (300, 1, 7, 7))], torch.randint(4, (300,))
    memory = kept(model, (x, y), per_task=100)
    memory.remember((x.roll(1, 0), y), classes=[0, 1, 2, 3])
    assert repr(memory).startswith("ExampleMemory(200 examples of 2 tasks, ")
    assert "of LeNet" in repr(memory)
    assert memory.nbytes == 200 * (49 + 1 + 16) + 256 * 4
    assert max(memory.stats().drift) < 1e-6
    with torch.no_grad():
        model.head.bias[0] += 2
    torch.testing.assert_close(memory.stats().drift, (1.0, 1.0))  # √(2² / 4)
    assert (memory.stats().examples, memory.stats().loss) == (200, ())
    assert [(e.names, e.nbytes) for e in memory.explain((x, y)).entries] == [
        (("input",), 49),
        (("label",), 1),
        (("output",), 16),
    ]
    text = str(memory.explain({"x": x, "labels": y}, logits=lambda m, x: m(x["x"])))
    assert "input['x']" in text
    assert "together, per example     66" in text


def test_drift_is_of_the_classes_of_the_task() -> None:
    model = nn.Linear(3, 4)
    memory = kept(model)
    for classes in ([0, 1], [2, 3]):
        memory.remember((torch.randn(5, 3), torch.tensor(classes * 2 + classes[:1])), classes=classes)
    with torch.no_grad():
        model.bias[0] += 1
    torch.testing.assert_close(memory.stats().drift, (0.5**0.5, 0.0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("budget", [10, "500B"])
def test_a_budget_is_kept_in_equal_shares(budget: Any) -> None:
    torch.manual_seed(0)
    tasks = [(torch.randn(40, 8) * 1e6, torch.randint(3, (40,))) for _ in range(3)]
    with pytest.raises(BudgetExceeded, match="nothing was stored"):
        kept(nn.Linear(8, 3), *tasks, budget=budget)
    memory = kept(nn.Linear(8, 3), *tasks, budget=budget, shrink=True)
    assert max(memory.task_sizes) - min(memory.task_sizes) <= 1
    assert len(memory) == (10 if budget == 10 else 500 // 45)
    assert max(memory.stats().drift) < 1e-6 * 1e6  # each example still has its own outputs
    with pytest.raises(BudgetExceeded, match="2 examples is too small for an example of each of 3 tasks"):
        kept(nn.Linear(8, 3), *tasks, budget=2, shrink=True)


def test_forgotten_tasks_are_gone() -> None:
    torch.manual_seed(0)
    memory = kept(nn.Linear(4, 3))
    for t in range(3):
        memory.remember((torch.full((t + 1, 4), float(t)), torch.full((t + 1,), t)), classes=[t])
    memory.forget(1)
    assert memory.task_sizes == (1, 3)
    assert [task.classes for task in memory.examples.tasks] == [(0,), (2,)]
    assert memory.examples.rows_of(1).tolist() == [1, 2, 3]
    memory.forget(-1)
    memory.forget(0)
    assert (memory.task_sizes, len(memory), memory.nbytes) == ((), 0, 0)
    assert memory.remembered_loss(4) is None
    memory.remember((torch.randn(2, 4), None))
    assert memory.task_sizes == (2,)
    with pytest.raises(IndexError, match="no task 5"):
        memory.forget(5)


def test_copies_are_the_same_and_independent() -> None:
    model, x, y = make("mlp", n=20)
    memory = kept(model, (x, y))
    for other in (copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
        assert other.examples.fingerprint == memory.examples.fingerprint
        assert torch.equal(loss(other), loss(copy.deepcopy(memory)))
        other.forget(0)
    assert memory.task_sizes == (20,)


REFUSED = {
    "empty": ((torch.zeros(0, 12), torch.zeros(0).long()), {}, "data is empty"),
    "labels": ((torch.ones(2, 12), torch.tensor([0, 4])), {}, "the model has 4 outputs, and labels are from 0 to 4"),
    "negative labels": ((torch.ones(2, 12), torch.tensor([0, -1])), {}, "labels are from -1 to 0"),
    "strange labels": ((torch.ones(2, 12), torch.tensor([0, 2])), {"classes": [0, 1]}, r"labels \[2\] are not among"),
    "strange classes": ((torch.ones(2, 12), None), {"classes": [1, 4]}, "are not among the model's outputs"),
    "nan": ((torch.full((2, 12), torch.nan), None), {}, "not finite"),
    "wrong outputs": ((torch.ones(2, 12), None), {"logits": lambda m, x: m(x)[:1]}, r"float32 \(1, 4\) for 2 examples"),
    "whole outputs": ((torch.ones(2, 12), None), {"logits": lambda m, x: m(x).argmax(1)}, "gives int64"),
    "sequences": ((torch.ones(2, 5, 12), None), {"classes": [0]}, "are not among the model's outputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_and_changes_nothing(case: str) -> None:
    data, options, message = REFUSED[case]
    model, x, y = make("mlp", dtype=torch.float32)
    memory = kept(model, (x, y))
    before = memory.examples
    with pytest.raises(ValueError, match=message):
        memory.remember(data, **options)
    assert memory.examples is before
    assert model.training


def test_each_memory_has_only_the_options_that_mean_something_for_it() -> None:
    model = nn.Linear(2, 2)
    for options in ({"sharded": True}, {"dtype": torch.bfloat16}, {"outputs": "all"}, {"chunk_size": 1}):
        GradientMemory(model, **options)
        with pytest.raises(TypeError, match=next(iter(options))):
            ExampleMemory(model, **options)
    memory, gradients = ExampleMemory(model), GradientMemory(model)
    assert not any(hasattr(memory, name) for name in ("project", "rank", "store", "outputs"))
    assert not any(hasattr(gradients, name) for name in ("observe", "remembered_loss", "examples"))
    with pytest.raises(TypeError, match="abstract"):
        Memory(model, 200)
    assert [type(one).__mro__[1] for one in (memory, gradients)] == [Memory, Memory]


def test_large_outputs_are_computed_in_parts_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = make("mlp", n=20)
    whole = kept(model, (x, y))
    monkeypatch.setattr("ogd.memory.examples.recording.CHUNK_BYTES", 7 * (12 + 4) * 8)
    sizes = []
    handle = model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    parts = kept(model, (x, y))
    handle.remove()
    assert sizes == [1, 7, 7, 6]
    torch.testing.assert_close(parts.examples.groups[0].z, whole.examples.groups[0].z)
    monkeypatch.setattr("ogd.long_work.BYTES", 1000)
    with pytest.warns(LongWork, match="keeping up to 200 examples with their outputs"):
        kept(model, (x, y))


def test_examples_follow_the_model_to_its_device() -> None:
    model, x, y = make("mlp")
    memory = kept(model, (x, y))
    model.to("meta")
    (lot,) = memory._examples_here().groups
    assert {t.device.type for t in (lot.z, lot.task, *(part.data for part in lot.packed))} == {"meta"}


@pytest.mark.parametrize("most", [1, 2**19])
def test_batches_drawn_ahead_are_those_drawn_one_by_one(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_BYTES", most)
    x = {"image": PIXELS[torch.randint(256, (30, 1, 4, 4))], "tokens": torch.randint(9, (30, 3))}
    logits = lambda model, x: model(x["image"].flatten(1)) + x["tokens"]  # noqa: E731
    memory = kept(nn.Linear(16, 3), (x, torch.randint(3, (30,))), logits=logits)
    ready = prefetch.Prefetcher()
    for seed, size, numbers in ((0, 4, range(20)), (0, 4, [3, 50, 51]), (1, 4, [51]), (1, 99, [51, 52])):
        for j in numbers:
            found = ready.batch(memory.examples, seed, j, size)
            (alone,) = memory.examples.batches(prefetch.draw(seed, j, 30, size))
            assert len(found) == min(size, 30)
            pairs = [(found.x[key], alone.x[key]) for key in x] + [(found.y, alone.y), (found.z, alone.z)]
            assert all(torch.equal(a, b) for a, b in pairs)
    memory.forget(0)
    memory.remember((x, torch.zeros(30).long()))
    assert not ready.batch(memory.examples, 1, 52, 4).y.any()  # others under the same number


def test_labels_that_cannot_be_rehearsed_are_told_of() -> None:
    model, x = nn.Linear(4, 3), torch.randn(9, 4)
    y = torch.arange(9) % 3
    column, flat = (ExampleMemory(model) for _ in range(2))
    column.remember((x, y[:, None]), generator=torch.Generator().manual_seed(0))
    flat.remember((x, y), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(column.remembered_loss(9), flat.remembered_loss(9))
    with pytest.warns(UserWarning, match="only the outputs are rehearsed"):
        ExampleMemory(model).remember((x, nn.functional.one_hot(y)))


def test_a_tuple_of_one_tensor_is_a_batch_without_labels() -> None:
    memory = ExampleMemory(nn.Linear(4, 3))
    memory.remember((torch.randn(9, 4),))
    assert len(memory) == 9
