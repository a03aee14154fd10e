"""Kept examples on disk and back: the same memory, which goes on as before, or an error that says why not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils import _pytree as pytree

from memory_models import make, train
from ogd.memory import BudgetExceeded, ExampleMemory, load
from ogd.memory.loading import KINDS
from ogd.memory.saving import from_leaves
from reference import flat, trainable

PIXELS = torch.arange(256) / 255
State = dict[str, Any]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.word = nn.Linear(108, 4), nn.Embedding(300, 4)

    def forward(self, image: Tensor, word: Tensor, scale: float = 1.0) -> Tensor:
        return self.image(image.flatten(1)) * self.word(word).mean(1) * scale


def mixed(n: int = 12, words: int = 3) -> tuple[State, Tensor]:
    codes = torch.randint(256, (n, 3, 6, 6))
    image = PIXELS[codes] * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    return {"image": image, "word": torch.randint(300, (n, words))}, torch.randint(4, (n,))


def filled() -> ExampleMemory:
    torch.manual_seed(0)
    memory = ExampleMemory(Mixed(), per_task=10, budget="1MB")
    assert isinstance(memory, ExampleMemory)
    memory.remember(mixed(40))
    memory.remember(mixed(8, words=5))
    x, y = mixed(9)
    memory.remember((x, y % 2), classes=[0, 1])
    return memory


def test_loaded_is_saved(tmp_path: Path) -> None:
    memory = filled()
    memory.save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", memory.model)
    again = ExampleMemory(memory.model)
    again.load_state_dict(memory.state_dict())
    for other in (loaded, again):
        assert isinstance(other, ExampleMemory)
        assert other.examples.fingerprint == memory.examples.fingerprint
        assert (other.task_sizes, other.nbytes, other.seed) == ((10, 8, 9), memory.nbytes, memory.seed)
        assert [task.classes for task in other.examples.tasks] == [None, None, (0, 1)]
        for one, two in zip(other.examples.groups, memory.examples.groups, strict=True):
            assert torch.equal(one.z, two.z)
            assert repr(one.structure) == repr(two.structure)
    assert (loaded.per_task, loaded.budget) == (10, memory.budget)
    first = (tmp_path / "m.safetensors").read_bytes()
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == first


@pytest.mark.parametrize("way", ["file", "state", "copy"])
def test_interrupted_training_goes_on_with_the_same_batches(tmp_path: Path, way: str) -> None:
    model, x, y = make("mlp", n=30)
    memory = ExampleMemory(model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=3, batch_size=4)
    train(model, optimizer, x, y.roll(1), 7)  # one step into a window
    memory.save(tmp_path / "m.safetensors")
    other = copy.deepcopy(model)
    torch.manual_seed(99)  # another process
    resumed = ExampleMemory(other)
    if way == "file":
        resumed = load(tmp_path / "m.safetensors", other)
    elif way == "copy":
        resumed = copy.deepcopy(memory)
        other = resumed.model
    optimizer2 = optim.SGD(other.parameters(), lr=0.1)
    resumed.protect(optimizer2, every=3, batch_size=4)
    if way == "state":
        resumed.load_state_dict(memory.state_dict())
    train(model, optimizer, x, y.roll(1), 8)
    train(other, optimizer2, x, y.roll(1), 8)
    assert torch.equal(flat(trainable(model)), flat(trainable(other)))


def test_a_state_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    model, x, y = make("mlp")
    for kind, other in (("examples", "gradients"), ("gradients", "examples")):
        memory = KINDS[kind](model)
        memory.remember((x, y))
        memory.save(tmp_path / kind)
        assert type(load(tmp_path / kind, model)) is KINDS[kind]
        with pytest.raises(ValueError, match=rf"another class \({type(memory).__name__}\): load it with ogd.load"):
            KINDS[other](model).load_state_dict(memory.state_dict())


def test_what_cannot_be_saved_is_told_before_a_file_is_written(tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = ExampleMemory(model)
    memory.remember((x, y), logits=lambda m, x: m(x))
    with pytest.raises(ValueError, match="a function cannot be saved"):
        memory.save(tmp_path / "m")
    memory = ExampleMemory(nn.Linear(2, 2), logits=lambda m, x: m(x.real))
    memory.remember((torch.ones(3, 2, dtype=torch.complex64), None))
    with pytest.raises(ValueError, match="complex64, which cannot be saved"):
        memory.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_infinite_inputs_are_loaded_as_they_were_saved(tmp_path: Path) -> None:
    memory = ExampleMemory(nn.Linear(2, 2), logits=lambda m, x: m(x.clamp(-1, 1)))
    memory.remember((torch.tensor([[-torch.inf, 0.5]]), None))
    memory.save(tmp_path / "m")
    assert load(tmp_path / "m", memory.model, logits=memory.logits).stats().drift == (0.0,)


def test_a_budget_holds_on_loading() -> None:
    state = filled().state_dict()
    with pytest.raises(BudgetExceeded, match="would hold 27 examples, its budget is 9"):
        ExampleMemory(Mixed(), budget=9).load_state_dict(state)
    memory = ExampleMemory(Mixed(), budget=9, shrink=True)
    with pytest.warns(UserWarning, match="other weights"):
        memory.load_state_dict(state)
    assert memory.task_sizes == (3, 3, 3)


@pytest.mark.parametrize("model", [nn.Linear(108, 4), nn.Flatten(), Mixed().requires_grad_(False)])
def test_another_model_is_told(model: nn.Module) -> None:
    if isinstance(model, Mixed):
        model.image, model.word = nn.Linear(108, 3), nn.Embedding(300, 3)
    memory = ExampleMemory(model)
    with pytest.raises(ValueError, match="the memory belongs to another model"):
        memory.load_state_dict(filled().state_dict())
    assert len(memory) == 0


def tensor(key: str, change: Callable[[Tensor], Any]) -> Callable[[State], None]:
    def apply(state: State) -> None:
        state["tensors"][key] = change(state["tensors"][key].clone())

    return apply


def entry(*path: Any, value: Any) -> Callable[[State], None]:
    def apply(state: State) -> None:
        *where, last = path
        for key in where:
            state = state[key]
        state[last] = value

    return apply


def without(key: str) -> Callable[[State], Any]:
    return lambda state: state.pop(key)


def nested(depth: int) -> Any:
    x: Any = {"tensor": 0}
    for _ in range(depth):
        x = {"list": [x]}
    return x


def first(value: float) -> Callable[[Tensor], Tensor]:
    def change(t: Tensor) -> Tensor:
        t.view(-1)[0] = value
        return t

    return change


DAMAGED: dict[str, Callable[[State], Any]] = {
    **{f"without {key}": without(key) for key in ("classes", "seed", "draws", "progress", "groups", "tensors")},
    **{f"without {key}": without(key) for key in ("version", "kind")},
    **{f"{key} a word": entry(key, value="x") for key in ("seed", "draws", "progress", "groups", "classes", "tensors")},
    **{f"{key} a number": entry(key, value=3) for key in ("progress", "groups", "classes", "tensors")},
    "draws negative": entry("draws", value=-1),
    "draws a fraction": entry("draws", value=1.5),
    "version": entry("version", value=99),
    "lot a list": entry("groups", 0, value=[]),
    "lot without x": lambda s: s["groups"][0].pop("x"),
    "leaves": entry("groups", 0, "leaves", value=[]),
    "leaf a number": entry("groups", 0, "leaves", 0, value=1),
    "dtype": entry("groups", 0, "leaves", 0, "dtype", value="float128"),
    "other dtype": entry("groups", 0, "leaves", 1, "dtype", value="float32"),
    "bool": entry("groups", 0, "leaves", 1, "dtype", value="bool"),
    "no palette": entry("groups", 0, "leaves", 0, "palette", value=False),
    "palette of none": entry("groups", 0, "leaves", 1, "palette", value=True),
    "structure a number": entry("groups", 0, "x", value=1),
    "structure unknown": entry("groups", 0, "x", value={"set": []}),
    "structure too small": entry("groups", 0, "x", value={"tensor": 0}),
    "structure twice": entry("groups", 0, "x", value={"list": [{"tensor": 0}, {"tensor": 0}]}),
    "structure deep": entry("groups", 0, "x", value=nested(900)),
    "structure a value": entry("groups", 0, "x", value={"value": []}),
    "structure of another model": entry("groups", 0, "x", value={"list": [{"tensor": 0}, {"tensor": 1}, {"value": 1}]}),
    "classes empty": entry("classes", 0, value=[]),
    "classes twice": entry("classes", 0, value=[1, 1]),
    "classes beyond": entry("classes", 2, value=[0, 1, 9]),
    "classes without a label": entry("classes", 2, value=[0]),
    "one task more": lambda s: s["classes"].append(None),
    "one task less": lambda s: s["classes"].pop(),
    "buffers": entry("buffers", value=[1]),
    "tensor more": entry("tensors", "9.z", value=torch.ones(1)),
    "tensor less": lambda s: s["tensors"].pop("0.z"),
    "tensor a list": tensor("0.z", Tensor.tolist),
    "tensor of text": tensor("0.x0", lambda t: "text"),
    "outputs nan": tensor("0.z", first(torch.nan)),
    "outputs whole": tensor("0.z", Tensor.long),
    "outputs one": tensor("0.z", lambda t: t[0, 0]),
    "outputs none": tensor("0.z", lambda t: t[:0]),
    "outputs short": tensor("0.z", lambda t: t[:-1]),
    "outputs wide": tensor("0.z", lambda t: t.repeat(1, 2)),
    "outputs nowhere": tensor("0.z", lambda t: t.to("meta")),
    "task beyond": tensor("0.task", first(3)),
    "task negative": tensor("0.task", first(-1)),
    "task float": tensor("0.task", Tensor.float),
    "task wide": tensor("0.task", lambda t: t[:, None]),
    "labels beyond": tensor("0.y", first(200)),
    "labels short": tensor("0.y", lambda t: t[1:]),
    "inputs short": tensor("0.x0", lambda t: t[1:]),
    "inputs cut": tensor("0.x0", lambda t: t[..., 1:]),
    "inputs sparse": tensor("0.x1", Tensor.to_sparse),
    "codes wide": tensor("0.x0", Tensor.int),
    "codes beyond": tensor("0.x0.palette", lambda t: t[:, :9]),
    "palette of another": tensor("0.x0.palette", lambda t: t[:2]),
    "palette nan": tensor("0.x0.palette", first(torch.nan)),
    "palette half": tensor("0.x0.palette", Tensor.half),
    "palette large": tensor("0.x0.palette", lambda t: t.repeat(1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_state_is_told_and_changes_nothing(name: str) -> None:
    memory = filled()
    state = copy.deepcopy(from_leaves(memory.state_dict()))
    DAMAGED[name](state)
    memory.forget(0)
    before = memory.examples
    with pytest.raises(ValueError, match=r"\w+ \w+") as caught:
        memory.load_state_dict(state)
    assert len(str(caught.value)) > 15
    assert memory.examples is before


def test_a_file_nested_beyond_reading_is_told(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "m", {"ogd.memory": "[" * 100_000})
    with pytest.raises(ValueError, match="its metadata is damaged"):
        load(tmp_path / "m", nn.Linear(1, 1))


def test_whoever_rehearses_in_a_loop_of_their_own_saves_without_a_warning() -> None:
    model = nn.Linear(3, 2)
    memory = ExampleMemory(model)
    memory.remember((torch.randn(4, 3), torch.tensor([0, 1, 1, 0])))
    with torch.no_grad():
        model.weight += 1
    memory.state_dict()  # only where an optimizer is protected is it known who should have moved the weights


@pytest.mark.parametrize("shape", [(30, 2, 40), (30, 2, 8, 5)])
def test_channels_with_values_of_their_own_are_loaded_as_they_were_saved(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 0.3]).view(2, *[1] * (len(shape) - 2))
    x = torch.randint(200, shape) * scale
    model = nn.Sequential(nn.Flatten(), nn.Linear(80, 3))
    memory = ExampleMemory(model)
    memory.remember((x, None))
    assert memory.nbytes < x.numel() + 30 * 3 * 4 + 2 * 256 * 4 + 1  # a byte for each number
    memory.save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", model)
    assert torch.equal(loaded.remembered_loss(30), memory.remembered_loss(30))
    assert loaded.nbytes == memory.nbytes


STRUCTURES: dict[str, Callable[[Tensor], Any]] = {
    "a tensor": lambda t: t,
    "a tuple": lambda t: (t, t),
    "a list": lambda t: [t, t + 1],
    "nested": lambda t: {"a": (t, [t + 1, t + 2]), "b": {"c": t, "words": "text", "number": 3, "none": None}},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_inputs_of_any_structure_are_loaded_as_they_were_saved(tmp_path: Path, name: str) -> None:
    def logits(model: nn.Module, x: Any) -> Tensor:
        seen.append(x)
        return model(sum(leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)))

    seen, model = list[Any](), nn.Linear(3, 2)
    memory = ExampleMemory(model, logits=logits)
    memory.remember((STRUCTURES[name](torch.randn(5, 3)), torch.tensor([0, 1, 0, 1, 0])))
    memory.save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", model, logits=logits)
    assert torch.equal(loaded.remembered_loss(5), memory.remembered_loss(5))
    after, before = seen[-2:]
    assert pytree.tree_structure(after) == pytree.tree_structure(before)
    for one, two in zip(pytree.tree_leaves(after), pytree.tree_leaves(before), strict=True):
        assert torch.equal(one, two) if isinstance(one, Tensor) else one == two
