"""A memory on disk and back: the same memory, or an error that says what is wrong with the file."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from memory_models import MODELS, make, rows
from ogd import tensor_files
from ogd.memory import BudgetExceeded, GradientMemory, Memory, load
from ogd.memory import saving as state


def saved(path: Path, name: str = "mlp", dtype: torch.dtype = torch.float64) -> Memory:
    model, x, y = make(name, dtype=dtype)
    memory = GradientMemory(model, per_task=4, params=None, budget="1MB", chunk_size=3)
    memory.remember((x, y))
    memory.remember((x, y))
    memory.save(path)
    return memory


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_loaded_is_saved(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    memory = saved(tmp_path / "m.safetensors", name, dtype)
    loaded = load(tmp_path / "m.safetensors", memory.model)
    again = GradientMemory(memory.model)
    again.load_state_dict(memory.state_dict())
    for other in (loaded, again):
        assert torch.equal(rows(other), rows(memory))
        assert (other.task_sizes, other.nbytes, other.rank) == (memory.task_sizes, memory.nbytes, memory.rank)
    assert (loaded.per_task, loaded.budget, loaded.chunk_size) == (4, memory.budget, 3)
    update = {n: torch.randn_like(p) for n, p in memory.model.named_parameters()}
    for n, u in memory.project(update).items():
        torch.testing.assert_close(loaded.project(update)[n], u)  # K is summed in another order


def test_a_loaded_memory_goes_on(tmp_path: Path) -> None:
    memory = saved(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", memory.model, per_task=6)
    _, x, y = make("mlp")
    loaded.remember((x, y))
    assert loaded.task_sizes == (4, 4, 6)
    torch.testing.assert_close(loaded.store.gram(loaded.store.shapes), rows(loaded) @ rows(loaded).mT)


def test_loading_replaces_what_a_protected_optimizer_is_held_to(tmp_path: Path) -> None:
    memory = saved(tmp_path / "m.safetensors")
    model, x, y = make("mlp")
    other = GradientMemory(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = other.protect(optimizer, every=1)
    other.load_state_dict(memory.state_dict())
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert protection.projector is not None
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (rows(memory) @ (after - before)).abs().max() < 1e-10


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, np.int64(4), outputs="all", budget=np.int32(20), chunk_size=np.int64(3))
    memory.remember((x, y), classes=[*np.arange(2), torch.tensor(3)])
    memory.protect(torch.optim.SGD(model.parameters(), lr=0.1), every=np.int64(2))
    memory.save(tmp_path / "m.safetensors")
    loaded = load(tmp_path / "m.safetensors", model)
    assert (loaded.per_task, loaded.budget.count, loaded.chunk_size, len(loaded)) == (4, 20, 3, 12)


def test_functions_must_be_given_again(tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, outputs=lambda f, y: f[:, 0], logits=lambda m, x: m(x))
    memory.remember((x, y))
    memory.save(tmp_path / "m.safetensors")
    for given, message in (({}, "give logits= again"), ({"logits": memory.logits}, "give outputs= again")):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "m.safetensors", model, **given)
    loaded = load(tmp_path / "m.safetensors", model, logits=memory.logits, outputs=memory.outputs)
    assert torch.equal(rows(loaded), rows(memory))


def test_saving_settles_and_replaces_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    memory = saved(path)
    model, x, y = memory.model, *make("mlp")[1:]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=9)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    memory.save(path)
    assert protection.pending == 0
    content = path.read_bytes()

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(tensor_files, "save_file", broken)
    with pytest.raises(OSError, match=r"m\.safetensors: disk full"):
        memory.save(path)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_full_disk_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = saved(tmp_path / "m.safetensors")

    def full(*_: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(OSError, match=r"m\.safetensors: it could not be written \(No space left on device\)"):
        memory.save(tmp_path / "m.safetensors")


def document(change: Callable[[dict], object]) -> Callable[[dict, dict], None]:
    """A change to the JSON document in the metadata."""

    def apply(tensors: dict, metadata: dict) -> None:
        content = json.loads(metadata[state.FORMAT])
        change(content)
        metadata[state.FORMAT] = json.dumps(content)

    return apply


def first(content: dict) -> dict:
    return content["pieces"][0]


DAMAGES = {
    "another version": (document(lambda d: d.update(version=99)), "version 99 of the state is unknown"),
    "another format": (lambda t, m: m.clear(), "not one of ours: its metadata has no 'ogd.memory'"),
    "no JSON": (lambda t, m: m.update({state.FORMAT: "{"}), "metadata is damaged"),
    "no object": (lambda t, m: m.update({state.FORMAT: "[]"}), "metadata is damaged"),
    "no pieces": (document(lambda d: d.pop("pieces")), "incomplete or malformed"),
    "pieces of another type": (document(lambda d: d.update(pieces=[3])), "incomplete or malformed"),
    "a missing tensor": (lambda t, m: t.pop("0.A"), "incomplete or malformed"),
    "a strange tensor": (lambda t, m: t.update(extra=torch.zeros(1)), "belong to no piece"),
    "a tensor of another shape": (lambda t, m: t.update({"0.D": torch.zeros(8, 3)}), r"D has shape \(8, 3\), not"),
    "integers": (lambda t, m: t.update({"0.D": t["0.D"].long()}), "not finite floating-point"),
    "NaN": (lambda t, m: t["0.D"].fill_(float("nan")), "not finite floating-point"),
    "a negative start": (document(lambda d: first(d).update(start=-1)), "whole number of at least 0"),
    "an unknown kind": (document(lambda d: first(d).update(kind="x")), "incomplete or malformed"),
    "rows beyond the tasks": (document(lambda d: first(d).update(start=5)), "more rows than its tasks"),
    "rows of no piece": (document(lambda d: d.update(tasks=[10**9])), "claims 1,000,000,000 rows, but row 8 is"),
    "a gap": (document(lambda d: d.update(tasks=[9]) or [p.update(start=1) for p in d["pieces"]]), "but row 0 is"),
    "rows twice": (
        document(lambda d: d["tasks"].append(9) or d["pieces"].append(first(d))),
        "malformed|twice",
    ),
    "names of another layer": (document(lambda d: first(d).update(names=["2.weight", "2.bias"])), "A has shape"),
    "no name": (document(lambda d: first(d).update(names=[])), "piece 0: its names are empty"),
    "a shape beyond all numbers": (document(lambda d: d["shapes"].update({"0.bias": [10**30]})), "beyond 64 bits"),
    "deep nesting": (
        lambda t, m: m.update({state.FORMAT: "[" * 10**5 + "]" * 10**5}),
        "metadata .* nested more than 32",
    ),
    "an unknown name": (document(lambda d: first(d).update(names=["x.weight", "x.bias"])), "malformed"),
    "no options": (document(lambda d: d.pop("options")), "options in the state are malformed"),
    "a budget of words": (document(lambda d: d["options"].update(budget="x")), "options .* malformed"),
    "params of numbers": (document(lambda d: d["options"].update(params=[3])), "options .* malformed"),
    "per_task of words": (document(lambda d: d["options"].update(per_task="x")), "per_task must be"),
    "examples of half a row": (document(lambda d: d.update(rows_per_example=[3, 1])), "do not make whole examples"),
    "each of words": (document(lambda d: d.update(rows_per_example=["x", 1])), "whole number of at least 1"),
    "each of one task": (document(lambda d: d.update(rows_per_example=[1])), "do not make whole examples"),
    "shrink of numbers": (document(lambda d: d["options"].update(shrink=3)), "shrink must be True or False"),
    "T of zero": (document(lambda d: first(d).update(T=0)), "whole number of at least 1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.safetensors"
    memory = saved(path)
    tensors = {k: t.clone() for k, t in load_file(path).items()}
    kept = {key: value for key, value in state.from_leaves(memory.state_dict()).items() if key != "tensors"}
    metadata = {state.FORMAT: json.dumps(kept)}
    change, message = DAMAGES[damage]
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=message) as caught:
        load(path, memory.model)
    assert str(path) in str(caught.value)


def test_a_file_that_was_altered_does_not_match_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    memory = saved(path)
    content = bytearray(path.read_bytes())
    for place in range(len(content) - 200, len(content), 40):  # in the tensors
        altered = content.copy()
        altered[place] ^= 1
        path.write_bytes(altered)
        with pytest.raises(ValueError, match=r"m\.safetensors: its content does not match its digest"):
            load(path, memory.model)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\x80\x04\x95pickle", None])
def test_other_files_are_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.safetensors"
    memory = saved(path)
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    with pytest.raises(ValueError, match=r"m\.safetensors: not a safetensors file, or a damaged one"):
        load(path, memory.model)
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        load(tmp_path / "none.safetensors", memory.model)


def test_folders_that_are_missing_or_no_files_are_named(tmp_path: Path) -> None:
    memory = saved(tmp_path / "m.safetensors")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing; make it first"):
        memory.save(tmp_path / "missing" / "m.safetensors")
    with pytest.raises(IsADirectoryError, match="a folder; give the path of a file, such as"):
        memory.save(tmp_path)
    with pytest.raises(IsADirectoryError, match=r"a folder; give the path of a file that a memory's save wrote"):
        load(tmp_path, memory.model)


def test_another_model_is_told_apart(tmp_path: Path) -> None:
    memory = saved(tmp_path / "m.safetensors")
    other = nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 9)).double()
    with pytest.raises(
        ValueError,
        match=r"not in the model: 4.weight, 4.bias; of another shape .*0.weight \(10, 12\) ≠ \(7, 12\)",
    ):
        load(tmp_path / "m.safetensors", other)
    target = GradientMemory(other)
    with pytest.raises(ValueError, match="another model"):
        target.load_state_dict(memory.state_dict())
    assert len(target) == 0


@pytest.mark.parametrize(("budget", "message"), [(2, "8 directions"), ("1KB", "3,456 bytes")])
def test_a_budget_holds_for_what_is_loaded(tmp_path: Path, budget: int | str, message: str) -> None:
    memory = saved(tmp_path / "m.safetensors")
    with pytest.raises(BudgetExceeded, match=rf"m\.safetensors: the memory would hold {message}"):
        load(tmp_path / "m.safetensors", memory.model, budget=budget)
    small = GradientMemory(memory.model, budget=budget)
    with pytest.raises(BudgetExceeded, match=message):
        small.load_state_dict(memory.state_dict())
    assert len(small) == 0


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    memory = saved(path)
    before = path.read_bytes()
    for limit, value, said in (("MOST_HEADER", 100, "its header has"), ("MOST_PARTS", 3, "more than 3 parts")):
        with monkeypatch.context() as low:
            low.setattr(tensor_files, limit, value)
            with pytest.raises(ValueError, match=rf"m\.safetensors: .*{said}"):
                load(path, memory.model)
            with pytest.raises(ValueError, match=said):  # what cannot be read is not written
                memory.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "PART", 2)
    assert tensor_files.is_finite(torch.zeros(3, 3))
    for at in range(9):
        spoiled = torch.zeros(9)
        spoiled[at] = float("inf")
        assert not tensor_files.is_finite(spoiled.view(3, 3))


@pytest.mark.parametrize("name", MODELS)
def test_a_state_is_what_its_file_holds(name: str, tmp_path: Path) -> None:
    model, x, y = make(name)
    memory = GradientMemory(model)
    memory.remember((x, y))
    memory.save(tmp_path / "m")
    stored, read = state.from_leaves(memory.state_dict()), state.read(tmp_path / "m")
    assert {key: value for key, value in stored.items() if key != "tensors"} == {
        key: value for key, value in read.items() if key != "tensors"
    }
    assert stored["tensors"].keys() == read["tensors"].keys()


def test_rows_of_a_parameter_that_are_stored_twice_are_refused() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    memory.remember((x, y))
    stored = state.from_leaves(memory.state_dict())
    i = len(stored["pieces"])
    own = {name.removeprefix("0."): t for name, t in stored["tensors"].items() if name.startswith("0.")}
    stored["pieces"].append(dict(stored["pieces"][0]))
    stored["tensors"] |= {f"{i}.{name}": t for name, t in own.items()}
    with pytest.raises(ValueError, match=r"rows of 0\.bias twice"):
        GradientMemory(model).load_state_dict(stored)
