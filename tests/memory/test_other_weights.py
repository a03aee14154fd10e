"""A memory that is loaded to other weights than it belongs to says so, and only then."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from memory_models import MODELS, make, train
from ogd.memory import GradientMemory, Memory, load
from ogd.memory.changes.other_weights import Fingerprint, sketch
from ogd.memory.loading import KINDS
from ogd.memory.projection.store import Store
from reference import flat

OTHER = "saved with other weights than this model has"
KEEPS = ["gradients", "examples"]


def saved(path: Path, name: str = "mlp", keep: Any = "gradients", dtype: torch.dtype = torch.float64) -> Memory:
    model, x, y = make(name, dtype=dtype)
    memory = KINDS[keep](model)
    memory.remember((x, y))
    memory.save(path / "m")
    return memory


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", MODELS)
def test_other_weights_are_noticed(name: str, keep: Any, tmp_path: Path) -> None:
    memory = saved(tmp_path, name, keep)
    other = make(name, seed=5)[0]
    with pytest.warns(UserWarning, match=f"{OTHER}.*load the model's weights first") as caught:
        load(tmp_path / "m", other)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=OTHER):
        KINDS[keep](other).load_state_dict(memory.state_dict())
    load(tmp_path / "m", memory.model)


@pytest.mark.parametrize("keep", KEEPS)
def test_weights_of_a_larger_model_are_noticed_before_any_training(keep: Any, tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 100), nn.LayerNorm(100), nn.ReLU(), nn.Linear(100, 10))

    memory = KINDS[keep](model(), 20)
    memory.remember((torch.rand(20, 784), torch.arange(20) % 10))
    memory.save(tmp_path / "m")
    with pytest.warns(UserWarning, match=OTHER):
        load(tmp_path / "m", model())


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mlp", "resnet", "transformer"])
def test_a_checkpoint_in_another_precision_has_the_same_weights(
    name: str, dtype: torch.dtype, keep: Any, tmp_path: Path
) -> None:
    memory = saved(tmp_path, name, keep, torch.float32)
    rounded = copy.deepcopy(memory.model).to(dtype).float()
    loaded = load(tmp_path / "m", rounded)
    loaded.protect(optim.SGD(rounded.parameters(), lr=0.1), every=1)
    if name == "mlp":  # other layers want inputs of the model's precision
        load(tmp_path / "m", copy.deepcopy(memory.model).to(dtype)) if keep == "gradients" else None


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_that_were_trained_under_protection_are_right(
    dtype: torch.dtype, every: int, keep: Any, tmp_path: Path
) -> None:
    memory = saved(tmp_path, "mlp", keep, dtype)
    _, x, y = make("mlp", n=20, seed=1, dtype=dtype)
    optimizer = optim.SGD(memory.model.parameters(), lr=0.1)
    with memory.protect(optimizer, every):
        train(memory.model, optimizer, x, y, 50)
    loaded = load(tmp_path / "m", memory.model)  # a memory from before, with weights from after
    memory.save(tmp_path / "later")
    load(tmp_path / "later", memory.model)
    loaded.remember((x, y))


def test_weights_that_were_trained_without_protection_are_not(tmp_path: Path) -> None:
    memory = saved(tmp_path)
    _, x, y = make("mlp", n=20, seed=1)
    train(memory.model, optim.SGD(memory.model.parameters(), lr=0.1), x, y, 10)
    with pytest.warns(UserWarning, match=OTHER):
        load(tmp_path / "m", memory.model)


def test_examples_are_rehearsed_at_whatever_weights_training_reached(tmp_path: Path) -> None:
    memory = saved(tmp_path, keep="examples")
    _, x, y = make("mlp", n=20, seed=1)
    train(memory.model, optim.SGD(memory.model.parameters(), lr=0.1), x, y, 20)
    assert max(load(tmp_path / "m", memory.model).stats().drift) > 0.1


@pytest.mark.parametrize("keep", KEEPS)
def test_a_file_without_a_fingerprint_is_loaded_without_a_word(keep: Any, tmp_path: Path) -> None:
    state = saved(tmp_path, keep=keep).state_dict()
    other = make("mlp", seed=5)[0]
    KINDS[keep](other).load_state_dict({name: value for name, value in state.items() if name != "weights"})
    KINDS[keep](other).load_state_dict({**state, "weights": None})


SPOILED: dict[str, Any] = {
    "a word": "weights",
    "a number": 3,
    "a list": [1.0, 2.0],
    "empty": {},
    "too few rows": {"along": [], "sketch": [[0.0] * 64] * 2, "names": ""},
    "a flat sketch": {"along": [0.0] * 6, "sketch": [0.0] * 128, "names": ""},
    "words": {"along": ["a"] * 6, "sketch": [[0.0] * 64] * 2, "names": ""},
    "not a number": {"along": [float("nan")] * 6, "sketch": [[0.0] * 64] * 2, "names": ""},
    "too large": {"along": [10**400] * 6, "sketch": [[0.0] * 64] * 2, "names": ""},
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_fingerprint_is_refused_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    memory = saved(tmp_path)
    fresh = GradientMemory(memory.model)
    with pytest.raises(ValueError, match="fingerprint of the weights is malformed"):
        fresh.load_state_dict({**memory.state_dict(), "weights": SPOILED[kind]})
    assert len(fresh) == 0


@pytest.mark.parametrize("keep", KEEPS)
def test_a_warning_that_is_an_error_changes_nothing(keep: Any, tmp_path: Path) -> None:
    state = saved(tmp_path, keep=keep).state_dict()
    memory = KINDS[keep](make("mlp", seed=5)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=OTHER):
            memory.load_state_dict(state)
    assert len(memory) == 0


@pytest.mark.parametrize("keep", KEEPS)
def test_weights_that_are_not_finite_can_be_saved(keep: Any, tmp_path: Path) -> None:
    memory = saved(tmp_path, keep=keep)
    with torch.no_grad():
        memory.model[0].weight[0, 0] = torch.nan  # type: ignore[index,union-attr]
    memory._warned_of_moves = True
    memory.save(tmp_path / "again")


def test_a_head_that_has_grown_tells_nothing(tmp_path: Path) -> None:
    memory = saved(tmp_path, keep="examples")
    assert isinstance(memory.model, nn.Sequential)
    memory.model[4] = nn.Linear(9, 7).double()
    load(tmp_path / "m", memory.model)


def test_weights_that_moved_without_protection_before_they_were_saved_are_those_of_the_file(tmp_path: Path) -> None:
    memory = saved(tmp_path)
    train(memory.model, optim.SGD(memory.model.parameters(), lr=0.1), *make("mlp", n=20, seed=1)[1:], 10)
    with pytest.warns(UserWarning, match="moved without protection"):
        memory.save(tmp_path / "m")
    load(tmp_path / "m", memory.model)


def test_a_sketch_is_linear_and_tells_how_far_weights_moved() -> None:
    torch.manual_seed(0)
    ratios = []
    for size in (3, 40, 400):
        w, u = ({"a": torch.randn(size, 30).double(), "b": torch.randn(size).double()} for _ in range(2))
        both = {name: w[name] + u[name] for name in w}
        torch.testing.assert_close(sketch(both) - sketch(w), sketch(u))
        ratios.append(float(sketch(u).norm() / flat(list(u.values())).norm()))
    assert all(0.6 < ratio < 1.4 for ratio in ratios)
    assert sketch({"a": torch.ones(2, 3)}).ne(sketch({"b": torch.ones(2, 3)})).any()


def test_a_sketch_does_not_depend_on_how_it_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"a": torch.randn(50, 13)}
    whole = sketch(weights)
    monkeypatch.setattr("ogd.memory.changes.other_weights.PART", 128)
    torch.testing.assert_close(sketch(weights), whole)


def test_what_has_no_numbers_is_left_out() -> None:
    weights: dict[str, torch.Tensor] = {"a": torch.ones(3, 3, device="meta"), "b": torch.ones(2, dtype=torch.long)}
    weights["c"] = nn.parameter.UninitializedParameter()
    assert Fingerprint.of(Store(), weights).to_state() == Fingerprint.of(Store(), {}).to_state()
