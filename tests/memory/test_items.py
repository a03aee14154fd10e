"""Items of any kind, rehearsed by the user's own loss: the gradient is that of a slow loop, in float64."""

import copy
import functools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from ogd import seeds
from ogd.memory import BudgetExceeded, ExampleMemory, load
from reference import flat
from two_ranks import on_ranks, results

Case = tuple[nn.Module, list[Any], dict[str, Any]]  # a model, items and the functions of the memory


class Detector(nn.Module):
    """Returns a loss in training mode only, as torchvision's detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 4)

    def boxes(self, image: Tensor) -> Tensor:
        return self.head(self.body(image[None]).mean((0, 2, 3)))

    def forward(self, images: list[Tensor], targets: list[dict[str, Any]] | None = None) -> Any:
        found = [self.boxes(image) for image in images]
        if not self.training:
            return found
        assert targets is not None
        each = [(z - box).square().mean() for z, t in zip(found, targets, strict=True) for box in t["boxes"]]
        return {"box": torch.stack(each).mean() if each else 0 * sum(found).sum()}


def pairs(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


def detection_loss(model: nn.Module, batch: Any) -> Tensor:
    images, targets = batch
    return sum(model(list(images), list(targets)).values())


def detection() -> Case:
    def item(i: int) -> tuple[Tensor, dict[str, Any]]:
        boxes = torch.rand(i % 4, 4).double()  # some images have none
        return torch.rand(1, 5 + i % 3, 6).double(), {"boxes": boxes, "name": f"image {i}", "crowd": None, "area": 2.5}

    return Detector().double(), [item(i) for i in range(9)], {"loss": detection_loss, "collate": pairs}


class Bag(nn.Module):
    def __init__(self, words: int = 20) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(words, 6), nn.Linear(6, 3)

    def forward(self, text: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.words(text, offsets))


def with_offsets(batch: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    texts, labels = zip(*batch, strict=True)
    offsets = torch.tensor([0, *map(len, texts)][:-1]).cumsum(0)
    return torch.cat(texts), offsets, torch.tensor(labels)


def bag_loss(model: nn.Module, batch: Any) -> Tensor:
    text, offsets, labels = batch
    return functional.cross_entropy(model(text, offsets), labels)


def bag_outputs(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch[:2])


def bag() -> Case:
    items = [(torch.randint(20, (1 + i % 5,)), i % 3) for i in range(9)]
    return Bag().double(), items, {"loss": bag_loss, "collate": with_offsets, "outputs": bag_outputs}


def noise_loss(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.randn_like(batch)
    return (model(batch + noise) - noise).square().mean()


def diffusion() -> Case:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    return model, list(torch.randn(9, 4).double()), {"loss": noise_loss}


def pair_loss(model: nn.Module, batch: Any) -> Tensor:
    a, b = (functional.normalize(model(batch[name]), dim=1) for name in ("a", "b"))
    return functional.cross_entropy(5 * a @ b.T, torch.arange(len(a)))


def contrastive() -> Case:
    items = [{"a": torch.randn(4).double(), "b": torch.randn(4).double()} for _ in range(9)]
    return nn.Linear(4, 5).double(), items, {"loss": pair_loss}


CASES: dict[str, Callable[[], Case]] = {
    "detection": detection,
    "EmbeddingBag": bag,
    "diffusion": diffusion,
    "contrastive": contrastive,
}


def made(name: str, per_task: int | None = None, **options: Any) -> tuple[nn.Module, list[Any], ExampleMemory]:
    torch.manual_seed(0)
    model, items, functions = CASES[name]()
    return model, items, ExampleMemory(model, per_task, **functions, **options)


def move(model: nn.Module, by: float = 0.2) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=by)


def slow_loss(name: str, model: nn.Module, items: list[Any], before: list[Tensor] | None, alpha: float) -> Tensor:
    """The same loss in plain loops, without BatchNorm's batch statistics and dropout."""
    if name == "detection":
        losses = [(model.boxes(x) - box).square().mean() for x, t in items for box in t["boxes"]]
        return torch.stack(losses).mean()
    if name == "EmbeddingBag":
        z = [model.head(model.words.weight[text].mean(0)) for text, _ in items]
        each = [-one.log_softmax(0)[y] for one, (_, y) in zip(z, items, strict=True)]
        moved = [(one - old).square().mean() for one, old in zip(z, before or [], strict=True)]
        return torch.stack(each).mean() + alpha * torch.stack(moved).mean()
    if name == "diffusion":
        noise = torch.randn(len(items), 4, dtype=torch.double)
        return torch.stack([(model(x + e) - e).square().mean() for x, e in zip(items, noise, strict=True)]).mean()
    a, b = ([one / one.norm() for one in (model(item[key]) for item in items)] for key in ("a", "b"))
    return torch.stack([-torch.stack([5 * u @ v for v in b]).log_softmax(0)[i] for i, u in enumerate(a)]).mean()


@pytest.mark.parametrize("name", CASES)
def test_the_added_gradient_is_that_of_a_slow_loop(name: str) -> None:
    model, items, memory = made(name)
    memory.remember(items[:5])
    memory.remember(items[5:])
    assert memory.task_sizes == (5, 4)
    alpha = 0.7 if name == "EmbeddingBag" else 0.5
    before = (
        [bag_outputs(model, with_offsets([item])).detach()[0] for item in items] if name == "EmbeddingBag" else None
    )
    optimizer = optim.SGD(model.parameters(), lr=0)
    rehearsal = memory.protect(optimizer, every=1, batch_size=6, bound=None, alpha=alpha)
    move(model)
    for number in range(2):
        rows = torch.randperm(9, generator=seeds.generator(memory.seed, "rehearsal", number))[:6].tolist()
        model.eval()
        state = torch.get_rng_state()
        torch.manual_seed(seeds.number(memory.seed, "loss", number, 0))
        slow = slow_loss(name, model, [items[i] for i in rows], before and [before[i] for i in rows], alpha)
        torch.set_rng_state(state)
        wanted = torch.autograd.grad(slow, list(model.parameters()), allow_unused=True)
        model.train()
        buffers = copy.deepcopy(list(model.buffers()))
        optimizer.zero_grad()
        optimizer.step()
        assert all(module.training for module in model.modules())
        torch.testing.assert_close(list(model.buffers()), buffers)
        for p, w in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(
                torch.zeros_like(p) if p.grad is None else p.grad, torch.zeros_like(p) if w is None else w
            )
        assert rehearsal.loss == pytest.approx(float(slow.detach()), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_items_survive_a_file(name: str, tmp_path: Path) -> None:
    model, items, memory = made(name)
    memory.remember(items)
    move(model)
    memory.save(tmp_path / "m.safetensors")
    given = CASES[name]()[2]
    again = load(tmp_path / "m.safetensors", model, **given)
    assert (again.nbytes, again.task_sizes, again.examples.fingerprint) == (
        memory.nbytes, memory.task_sizes, memory.examples.fingerprint,
    )  # fmt: skip
    assert again.stats() == memory.stats()
    assert str(again.examples.items[1].unpack()) == str(items[1])
    torch.testing.assert_close(again.remembered_loss(4), memory.remembered_loss(4))
    for missing in given:
        with pytest.raises(ValueError, match=f"give {missing}= again"):
            load(tmp_path / "m.safetensors", model, **{k: f for k, f in given.items() if k != missing})


def test_drift_is_the_change_of_the_loss() -> None:
    model, items, memory = made("contrastive")
    memory.remember(items)
    assert memory.stats().drift == pytest.approx((0,), abs=1e-12)
    before = float(pair_loss(model, torch.utils.data.default_collate(items)).detach())
    move(model)
    now = float(pair_loss(model, torch.utils.data.default_collate(items)).detach())
    assert memory.stats().drift == pytest.approx((now - before,))
    model, items, memory = made("EmbeddingBag")  # or of the outputs, where they are kept
    memory.remember(items)
    z = bag_outputs(model, with_offsets(items)).detach()
    move(model)
    moved = (bag_outputs(model, with_offsets(items)).detach() - z).square().mean().sqrt()
    assert memory.stats().drift == pytest.approx((float(moved),))


@pytest.mark.parametrize("name", CASES)
def test_rehearsal_keeps_the_old_loss_down(name: str) -> None:
    drift = []
    for protected in (False, True):
        model, items, memory = made(name)
        optimizer = optim.SGD(model.parameters(), lr=0.05)
        memory.remember(items)
        if protected:
            memory.protect(optimizer, every=1, batch_size=9, bound=None)
        torch.manual_seed(1)
        for _ in range(20):
            optimizer.zero_grad()
            sum(p.sum() for p in model.parameters()).backward()
            optimizer.step()
        drift.append(abs(memory.stats().drift[0]))
    assert drift[1] < drift[0]


def test_random_numbers_of_the_user_stay_as_they_were() -> None:
    model, items, _ = made("diffusion")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return noise_loss(model, batch) + random.random() + float(np.random.rand())  # noqa: NPY002

    memory = ExampleMemory(model, loss=loss)
    optimizer = optim.SGD(model.parameters(), lr=0)

    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    before = states()
    memory.remember(items)
    rehearsal = memory.protect(optimizer, every=1)
    losses = []
    for _ in range(3):
        optimizer.step()
        losses.append(rehearsal.loss)
    assert memory.stats().drift == pytest.approx((0,), abs=1e-12)
    assert states() == before
    assert len(set(losses)) == 3  # each rehearsal draws its own noise


def test_nothing_that_happens_to_a_batch_changes_an_item() -> None:
    class Graph:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = model(torch.stack([graph.x for graph, _ in batch])).square().mean()
        for graph, more in batch:
            graph.x.zero_()
            more[0].zero_()
        return value

    model = nn.Linear(3, 2)
    items = [(Graph(torch.rand(3)), [torch.rand(2)]) for _ in range(4)]
    memory = ExampleMemory(model, loss=loss, collate=list)
    memory.remember(items)
    fingerprint, first = memory.examples.fingerprint, memory.remembered_loss(4)
    for graph, more in items:
        graph.x.zero_()
        more[0].zero_()
    torch.testing.assert_close(memory.remembered_loss(4), first)
    assert memory.examples.fingerprint == fingerprint
    assert memory.nbytes == 4 * (12 + 8)
    with pytest.raises(ValueError, match=r"an input holds Graph: .* make other objects in collate="):
        memory.state_dict()


class Numbers(Dataset[Tensor]):
    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> Tensor:
        if i >= 100:
            raise IndexError
        self.read += 1
        return torch.full((2,), float(i))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return (torch.full((2,), float(i)) for i in range(100))


def square(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0] if isinstance(batch, list) else batch).square().mean()


def kept(data: Any, **options: Any) -> list[int]:
    memory = ExampleMemory(nn.Linear(2, 1), 7, loss=square)
    memory.remember(data, **options)
    found = [item.unpack() for item in memory.examples.items]
    return [int((one[0] if isinstance(one, tuple) else one)[0]) for one in found]


@pytest.mark.parametrize(
    "data",
    [
        Numbers(),
        list(Numbers()),
        Stream(),
        DataLoader(Numbers(), 8, shuffle=True),
        DataLoader(Stream(), 8),
        TensorDataset(torch.arange(100.0)[:, None].expand(100, 2)),
        torch.arange(100.0)[:, None].expand(100, 2),
    ],
    ids=["Dataset", "list", "stream", "loader", "loader of a stream", "TensorDataset", "tensor"],
)
def test_items_are_drawn_uniformly(data: Any) -> None:
    torch.manual_seed(0)
    found = kept(data)
    assert len(set(found)) == 7
    assert max(found) > 20
    assert kept(data) == found  # torch's seed decides
    assert kept(data, generator=torch.Generator().manual_seed(3)) != found


def test_only_the_drawn_items_are_read_and_only_those_of_the_sampler() -> None:
    data = Numbers()
    kept(DataLoader(data, 8, shuffle=True))
    assert data.read == 7
    sampler = torch.utils.data.SubsetRandomSampler(range(90, 95))
    assert sorted(kept(DataLoader(data, 2, sampler=sampler))) == [90, 91, 92, 93, 94]
    assert sorted(kept(Subset(data, [3, 4]))) == [3, 4]


class Endless(torch.utils.data.Sampler[int]):
    """A sampler without a length, as in training for a number of steps."""

    def __iter__(self) -> Any:
        while True:
            yield from torch.randperm(20).tolist()


class EndlessBatches(Endless):
    def __iter__(self) -> Any:
        while True:
            yield torch.randperm(20)[:5].tolist()


@pytest.mark.parametrize("options", [{"sampler": Endless(), "batch_size": 5}, {"batch_sampler": EndlessBatches()}])
def test_a_sampler_that_never_ends_is_left(options: dict[str, Any]) -> None:
    loader = DataLoader(list(Numbers())[:20], **options)
    assert len(set(kept(loader))) == 7
    memory = ExampleMemory(nn.Linear(2, 1), per_task=7)
    memory.remember(loader)
    assert memory.task_sizes == (7,)


def test_the_collate_function_is_that_of_the_loader_of_each_task() -> None:
    model, items, _ = bag()
    memory = ExampleMemory(model, loss=bag_loss)
    memory.remember(DataLoader(items[:4], 2, collate_fn=with_offsets))
    memory.remember(DataLoader(items[4:], 2, collate_fn=functools.partial(with_offsets)))
    slow = bag_loss(model, with_offsets(items))
    torch.testing.assert_close(memory.remembered_loss(9), slow)


def test_budgets_forgetting_and_shrinking() -> None:
    _, items, memory = made("detection", budget=6)
    with pytest.raises(BudgetExceeded, match="would hold 9 examples"):
        memory.remember(items)
    assert memory.task_sizes == ()
    _, items, memory = made("detection", budget=6, shrink=True)
    memory.remember(items[:5])
    memory.remember(items[5:])
    assert memory.task_sizes == (3, 3)
    memory.forget(0)
    assert memory.task_sizes == (3,)
    assert memory.stats().drift == pytest.approx((0,), abs=1e-12)
    memory.forget(-1)
    assert (memory.task_sizes, memory.remembered_loss(4)) == ((), None)
    nbytes = sum(t[1]["boxes"].nbytes + t[0].nbytes for t in items)
    _, items, memory = made("detection", budget=f"{nbytes // 2}B", shrink=True)
    memory.remember(items)
    assert 2 <= len(memory) <= 5
    assert memory.nbytes <= nbytes // 2


def test_explain_names_each_part() -> None:
    _, items, memory = made("detection")
    told = str(memory.explain(items))
    assert "item[1]['boxes']" in told
    assert "together, per item" in told
    assert memory.task_sizes == ()
    assert "outputs" in str(made("EmbeddingBag")[2].explain(bag()[1]))


def test_weights_that_move_without_protection_are_noticed() -> None:
    model, items, memory = made("diffusion")
    memory.remember(items)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer)
    memory.unprotect()
    move(model)
    with pytest.warns(UserWarning, match="moved without protection"):
        memory.protect(optimizer)


def test_arrays_numbers_and_texts_come_back_as_they_were(tmp_path: Path) -> None:
    item = {"a": np.arange(3), "b": np.float32(0.5), "c": [1, 2.5, "text", None, True], "d": (np.zeros((2, 2)),)}
    own: Any = {"loss": lambda model, batch: model(torch.ones(1, 1)).sum(), "collate": list}
    memory = ExampleMemory(nn.Linear(1, 1), **own)
    memory.remember([item] * 2)
    memory.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors", memory.model, **own)
    for kept in (memory.examples.items[0], again.examples.items[1]):
        found = kept.unpack()
        assert str(found) == str(item)
        assert [found["a"].dtype, found["b"].dtype] == [item["a"].dtype, item["b"].dtype]


def test_arrays_of_unusual_types_are_kept(tmp_path: Path) -> None:
    item = {"depth": np.array([7, 65535], dtype=np.uint16), "stars": np.array([0.5, 1e9], dtype=">f4")}
    item["counts"] = torch.tensor([1, 2**31]).to(torch.uint32)
    own: Any = {"loss": lambda model, batch: model(torch.ones(1, 1)).sum(), "collate": list}
    memory = ExampleMemory(nn.Linear(1, 1), **own)
    memory.remember([item])
    memory.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors", memory.model, **own)
    for kept in (memory, again):
        found = kept.examples.items[0].unpack()
        assert all(found[name].tolist() == value.tolist() for name, value in item.items())
        assert (found["depth"].dtype, found["stars"].dtype, found["counts"].dtype) == (np.uint16, "=f4", torch.uint32)
    memory.remember([{**item, "exact": np.ones(2, dtype=np.longdouble)}])  # copied, because torch has no such type
    assert memory.examples.items[1].unpack()["exact"].dtype == np.longdouble
    with pytest.raises(ValueError, match="an input holds ndarray"):
        memory.state_dict()


def test_an_error_of_the_user_s_functions_says_what_the_memory_did() -> None:
    items = [torch.ones(2 + i) for i in range(3)]
    for functions, kind, note in (
        ({"loss": square}, RuntimeError, "made a batch of 3 kept items by default_collate. Give collate="),
        ({"loss": lambda batch: 0, "collate": list}, TypeError, r"called loss\(model, batch\) .* a list of 3: float32"),
    ):
        memory = ExampleMemory(nn.Linear(2, 1), **functions)
        with pytest.raises(kind) as raised:
            memory.remember(items)
        assert re.search(note, "".join(raised.value.__notes__))
        assert memory.task_sizes == ()


@pytest.mark.parametrize("value", [float("nan"), 2**70, "half\udcff", {1: 2}, {1, 2}, torch.eye(2).to_sparse()])
def test_what_a_file_cannot_hold_is_refused(value: Any) -> None:
    memory = ExampleMemory(nn.Linear(1, 1), loss=lambda model, batch: model(torch.ones(1, 1)).sum(), collate=list)
    memory.remember([(torch.ones(1), value)])
    with pytest.raises(ValueError, match="an input holds"):
        memory.state_dict()


def nothing(model: nn.Module, batch: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate": list}, "collate= is for items"),
        ({"outputs": square}, "outputs= is for items"),
        ({"loss": 3}, "loss must be a function"),
        ({"loss": square, "logits": square}, "logits= and loss= exclude each other"),
    ],
)
def test_functions_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ExampleMemory(nn.Linear(2, 1), **options)


@pytest.mark.parametrize(
    ("functions", "data", "options", "message"),
    [
        ({"loss": nothing}, Numbers(), {}, "loss must return one number.*NoneType"),
        ({"loss": lambda m, b: m(b)}, Numbers(), {}, r"loss must return one number.*float32 \(16, 1\)"),
        ({"loss": lambda m, b: square(m, b).detach()}, Numbers(), {}, "does not depend on any protected parameter"),
        ({"loss": lambda m, b: square(m, b) * torch.nan}, Numbers(), {}, "not finite"),
        ({"loss": square, "outputs": lambda m, b: m(b)[:2]}, Numbers(), {}, "outputs must return a tensor"),
        (
            {"loss": square, "outputs": lambda m, b: m(b) / 0},
            Numbers(),
            {},
            "outputs= gives numbers that are not finite",
        ),
        ({"loss": square}, [], {}, "data is empty"),
        ({"loss": square}, (torch.ones(2, 2), torch.ones(2)), {}, r"give TensorDataset\(x, y\)"),
        ({"loss": square}, DataLoader(Numbers(), None), {}, "ready batches"),
        ({"loss": square}, Numbers(), {"choose": "balanced"}, "are for pairs"),
        ({"loss": square}, Numbers(), {"classes": [0]}, "are for pairs"),
        ({"loss": square}, [torch.ones(2), (i for i in range(3))], {}, "generator, which cannot be copied"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(functions: Any, data: Any, options: Any, message: str) -> None:
    memory = ExampleMemory(nn.Linear(2, 1), **functions)
    with pytest.raises((ValueError, TypeError), match=message):
        memory.remember(data, **options)
    assert memory.task_sizes == ()


def test_options_of_protect_that_mean_nothing_without_outputs() -> None:
    model, items, memory = made("contrastive")
    memory.remember(items)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="alpha= weighs outputs, and the memory keeps none"):
        memory.protect(optimizer, alpha=0.2)
    with pytest.raises(ValueError, match="labels=False leaves the loss out"):
        memory.protect(optimizer, labels=False)
    with pytest.raises(ValueError, match="observe is for batches"):
        memory.observe(torch.ones(2, 4))
    model, items, memory = made("EmbeddingBag")
    memory.remember(items)
    assert float(memory.remembered_loss(9, labels=False).detach()) == pytest.approx(0, abs=1e-20)


def test_a_state_of_pairs_and_one_of_items_do_not_mix() -> None:
    _, items, memory = made("diffusion")
    memory.remember(items)
    plain = ExampleMemory(memory.model)
    for one, other in ((plain, memory), (memory, plain)):
        with pytest.raises(ValueError, match="memory with a loss="):
            one.load_state_dict(other.state_dict())


def test_words_that_are_added_to_a_bag_are_rehearsed_with_the_old() -> None:
    model, items, memory = made("EmbeddingBag")
    memory.remember(items)
    larger = nn.EmbeddingBag(25, 6).double()
    with torch.no_grad():
        larger.weight[:20] = model.words.weight
    model.words = larger
    assert memory.stats().drift == pytest.approx((0,), abs=1e-12)
    memory.remember([(torch.tensor([22, 3]), 1), (torch.tensor([24]), 2)])
    assert memory.remembered_loss(11).isfinite()


def trained() -> tuple[Tensor, tuple[int, ...], bytes]:
    import torch.distributed as dist

    model, items, memory = made("EmbeddingBag")
    there = dist.is_initialized()
    memory.remember(items[dist.get_rank() :: 2] if there else [*items[::2], *items[1::2]])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1, batch_size=5)
    torch.manual_seed(dist.get_rank() if there else 0)
    for _ in range(5):
        optimizer.zero_grad()
        sum(p.square().sum() for p in model.parameters()).backward()
        optimizer.step()
    return flat(list(model.parameters())).detach(), memory.task_sizes, memory.examples.fingerprint


def test_two_ranks_are_as_one_process(tmp_path: Path) -> None:
    w, sizes, fingerprint = trained()
    for other, theirs, print_ in results(on_ranks(tmp_path, trained)):
        torch.testing.assert_close(other, w)
        assert (theirs, print_) == (sizes, fingerprint)
