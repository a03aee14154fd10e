"""A soft projection lets remembered outputs move a little: it is the dense one, whatever way it is computed."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from memory_models import MODELS, make, moved, rows, train
from ogd.memory import GradientMemory, load, saving
from reference import flat, project_softly, trainable
from two_ranks import on_ranks, results

SOFTNESS = [1e-8, 1e-3, 0.05, 10.0]


def an_update(model: nn.Module, seed: int = 3) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draws).to(p.dtype) for name, p in model.named_parameters()}


def projected(memory: GradientMemory, update: dict[str, Tensor]) -> Tensor:
    return flat(list(memory.project(update).values()))


@pytest.mark.parametrize("softness", SOFTNESS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_projected_as_the_dense_solution_says(name: str, softness: float) -> None:
    model, x, y = make(name, n=7)
    memory = GradientMemory(model, outputs="all", softness=softness)
    update = an_update(model)
    for part in (slice(0, 3), slice(3, 4), slice(2, 7)):  # some examples come twice
        memory.remember((x[part], y[part]))
        expected = project_softly(rows(memory), flat(list(update.values())), softness)
        torch.testing.assert_close(projected(memory, update), expected, rtol=0, atol=1e-7)


def test_no_softness_is_the_exact_projection_and_a_tiny_one_tends_to_it() -> None:
    model, x, y = make("mlp")
    update = an_update(model)
    found = {}
    for softness in (None, 0, 0.0, 1e-300, 1e-12, 1e-8):
        memory = GradientMemory(model) if softness is None else GradientMemory(model, softness=softness)
        memory.remember((x, y))
        found[softness] = projected(memory, update)
    assert all(torch.equal(found[None], found[softness]) for softness in (0, 0.0, 1e-300, 1e-12))
    assert 0 < (found[1e-8] - found[None]).norm() < 1e-6


@pytest.mark.parametrize("task", [0, 1, -1])
def test_forgetting_a_task_is_never_having_remembered_it(task: int) -> None:
    model, x, y = make("mlp", n=9)
    update, data = an_update(model), list(zip(x.split((3, 2, 4)), y.split((3, 2, 4)), strict=True))
    memory = GradientMemory(model, softness=0.05)
    for one in data:
        memory.remember(one)
        projected(memory, update)  # W is there, and extended
    memory.forget(task)
    del data[task]
    other = GradientMemory(model, softness=0.05)
    for one in data:
        other.remember(one)
    torch.testing.assert_close(projected(memory, update), projected(other, update), rtol=0, atol=1e-10)
    expected = project_softly(rows(other), flat(list(update.values())), 0.05)
    torch.testing.assert_close(projected(memory, update), expected, rtol=0, atol=1e-10)


def test_a_loaded_memory_is_as_soft_and_may_be_loaded_harder(tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, softness=0.05)
    memory.remember((x, y))
    memory.save(tmp_path / "m")
    update = an_update(model)
    loaded = load(tmp_path / "m", model)
    assert loaded.softness == 0.05
    torch.testing.assert_close(projected(loaded, update), projected(memory, update), rtol=0, atol=1e-12)
    exact = load(tmp_path / "m", model, softness=0)
    torch.testing.assert_close(rows(exact) @ projected(exact, update), torch.zeros(6).double(), rtol=0, atol=1e-10)
    stored = memory.state_dict()
    stored["options"]["softness"] = "very"
    saving.write(stored, tmp_path / "m")
    with pytest.raises(ValueError, match="softness must be a number, 0 or more, not 'very'"):
        load(tmp_path / "m", model)


@pytest.mark.parametrize("softness", [-0.1, float("nan"), float("inf"), "0.1", None, True])
def test_a_wrong_softness_is_refused_by_name(softness: Any) -> None:
    with pytest.raises(ValueError, match="softness must be a number, 0 or more, not"):
        GradientMemory(nn.Linear(2, 1), softness=softness)


@pytest.mark.parametrize("every", [1, 4])
def test_protected_steps_are_projected_softly(every: int) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, softness=0.05)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    start = flat(trainable(model))
    protection = memory.protect(optimizer, every)
    train(model, optimizer, *make("mlp", seed=1)[1:], steps=every - 1)
    before = moved(model, start)  # not projected yet
    train(model, optimizer, *make("mlp", seed=1)[1:], steps=1)
    u = before - 0.1 * flat([p.grad for p in trainable(model)])
    v = moved(model, start)
    torch.testing.assert_close(v, project_softly(rows(memory), u, 0.05), rtol=0, atol=1e-10)
    assert protection.pending == 0
    assert memory.stats().kept[0] == pytest.approx(float(v.norm() / u.norm()), rel=1e-9)
    drift = memory.stats().drift[0]
    assert drift == pytest.approx(float((rows(memory) @ v).square().mean().sqrt()), rel=1e-9)
    assert drift > 1e-6


@pytest.mark.parametrize("softness", [1e-8, 0.05, 10.0])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_conjugate_gradients_project_as_softly(name: str, softness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogd.memory.projection.projector.SOFT_DIRECT", 2)
    monkeypatch.setattr("ogd.memory.projection.solve.conjugate_gradients.__defaults__", (1e-12, 500))
    model, x, y = make(name)
    memory = GradientMemory(model, softness=softness)
    memory.remember((torch.cat([x, x[:2]]), torch.cat([y, y[:2]])))
    update = an_update(model)
    expected = project_softly(rows(memory), flat(list(update.values())), softness)
    torch.testing.assert_close(projected(memory, update), expected, rtol=0, atol=1e-7)
    assert not memory.store.grams  # K was not formed
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with memory.protect(optimizer, every=1):
        train(model, optimizer, x, y, 1)
        assert memory._projectors()[0].solve.iterations
        assert 0 < memory.stats().kept[0] <= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("every", [1, 4])
def test_training_under_a_soft_protection_is_no_other_training(every: int, dtype: torch.dtype, tmp_path: Path) -> None:
    model, x, y = make("mlp", n=20, dtype=dtype)
    memory = GradientMemory(model, softness=0.05)
    memory.remember((x, y))
    memory.save(tmp_path / "m")
    _, new_x, new_y = make("mlp", n=20, seed=1, dtype=dtype)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with memory.protect(optimizer, every), warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, new_x, new_y, 50)
        load(tmp_path / "m", model)  # a memory from before, with weights from after
        memory.remember((new_x, new_y))


def test_training_without_protection_is_noticed_beside_many_soft_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3))
    x, y = torch.randn(200, 30), torch.randint(3, (200,))
    memory = GradientMemory(model, softness=0.01)
    memory.remember((x, y))
    memory.save(tmp_path / "m")
    train(model, optim.SGD(model.parameters(), lr=0.1), x + 1, y.flip(0), 30)
    with pytest.warns(UserWarning, match="saved with other weights"):
        load(tmp_path / "m", model)
    with pytest.warns(UserWarning, match="moved without protection"):
        memory.remember((x, y))


def test_zero_gradients_are_told_and_harmless() -> None:
    model = nn.Linear(2, 2, bias=False).double()
    memory = GradientMemory(model, softness=0.05)
    memory.protect(optimizer := optim.SGD(model.parameters(), lr=0.1), every=1)
    memory.remember((torch.tensor([[1.0, 0], [0, 0]]).double(), torch.zeros(2).long()))
    update = {"weight": torch.tensor([[1.0, 1.0], [1.0, 1.0]]).double()}
    expected = torch.tensor([[0.05 / 1.05, 1.0], [1.0, 1.0]]).double()
    torch.testing.assert_close(memory.project(update)["weight"], expected)
    with pytest.warns(UserWarning, match="1 of 2 stored gradients protect nothing"):
        train(model, optimizer, torch.ones(1, 2).double(), torch.zeros(1).long(), 1)


def projected_on_ranks(sharded: bool) -> Tensor:
    model, x, y = make("mlp", n=7)
    memory = GradientMemory(model, softness=0.05, sharded=sharded)
    for part in (slice(0, 4), slice(4, 5), slice(5, 7)):
        memory.remember((x[part], y[part]))
        found = projected(memory, an_update(model))
    return found


def whole_and_sharded() -> list[Tensor]:
    return [projected_on_ranks(sharded) for sharded in (False, True)]


def test_ranks_project_alike_whole_and_sharded(tmp_path: Path) -> None:
    model, x, y = make("mlp", n=7)
    memory = GradientMemory(model)
    memory.remember((x, y))
    expected = project_softly(rows(memory), flat(list(an_update(model).values())), 0.05)
    for found in results(on_ranks(tmp_path, whole_and_sharded)):
        for v in found:
            torch.testing.assert_close(v, expected, rtol=0, atol=1e-9)
