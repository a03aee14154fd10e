"""What is deleted is gone: no memory, file or explanation keeps a model alive."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from memory_models import MODELS, make
from ogd.memory import Memory, load
from ogd.memory.loading import KINDS

KEEPS = ("gradients", "examples")


def forget(memory: Memory, path: Path) -> None:
    memory.remember((torch.randn(3, 12), torch.zeros(3).long()))
    memory.forget(0)


def saved(memory: Memory, path: Path) -> None:
    memory.save(path)
    load(path, memory.model).stats()


def trained(memory: Memory, path: Path) -> None:
    optimizer = torch.optim.Adam(memory.model.parameters())
    memory.protect(optimizer, every=2)
    for _ in range(3):
        optimizer.zero_grad()
        memory.model(torch.randn(4, 12)).sum().backward()
        optimizer.step()


USES: dict[str, Callable[[Memory, Path], object]] = {
    "remember": lambda memory, path: None,
    "explain": lambda memory, path: memory.explain((torch.randn(3, 12), torch.zeros(3).long())),
    "stats": lambda memory, path: memory.stats(),
    "forget": forget,
    "save and load": saved,
    "protect and train": trained,
}


def alive(models: list["weakref.ref[nn.Parameter]"]) -> int:
    gc.collect()
    return sum(ref() is not None for ref in models)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("use", USES)
def test_a_deleted_model_is_gone(use: str, keep: str, tmp_path: Path) -> None:
    def one() -> list["weakref.ref[nn.Parameter]"]:
        model, x, y = make("mlp", dtype=torch.float32)
        memory = KINDS[keep](model, per_task=4)
        memory.remember((x, y))
        USES[use](memory, tmp_path / "memory.safetensors")
        return [weakref.ref(p) for p in model.parameters()]

    assert alive([ref for _ in range(3) for ref in one()]) == 0


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_can_be_deleted(name: str, keep: str) -> None:
    def one() -> list["weakref.ref[nn.Parameter]"]:
        model, x, y = make(name)
        KINDS[keep](model).remember((x, y))
        return [weakref.ref(p) for p in model.parameters()]

    assert alive(one()) == 0
