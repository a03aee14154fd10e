"""What docs/privacy.md says a memory reveals: stored gradients contain their examples."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ogd.lab.benchmarks.task import labels, pixels
from ogd.lab.data import Dataset
from ogd.lab.models import mlp
from ogd.memory import Dense, GradientMemory
from reference import logit_gradients

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("recover", ROOT / "measurements" / "privacy" / "recover.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def examples(mnist: Dataset) -> tuple[Tensor, Tensor]:
    return pixels(mnist.train_images[:20]).flatten(1), labels(mnist.train_labels[:20])


def paper_network() -> nn.Module:
    torch.manual_seed(0)
    return mlp()


def test_a_saved_memory_holds_the_images_themselves(examples: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    memory = GradientMemory(paper_network())
    memory.remember(examples)
    memory.save(tmp_path / "memory.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "memory.safetensors")["0.A"], examples[0], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dense_gradient_reveals_its_digit(script: Any, examples: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    x, y = examples[0].to(dtype), examples[1]
    G = logit_gradients(paper_network().to(dtype), x, y).to(dtype)
    atol = 1e-5 if dtype == torch.float32 else 1e-12
    for gradient, image in zip(G, x, strict=True):
        torch.testing.assert_close(script.input_of(gradient), image, rtol=0, atol=atol)


def test_a_memory_that_stores_densely_reveals_it_too(examples: tuple[Tensor, Tensor], script: Any) -> None:
    class Twice(nn.Linear):  # a weight that is used twice: its gradients are stored dense
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight / 2, self.bias / 2) + super().forward(x) / 2

    network = paper_network()
    network[0].__class__ = Twice
    memory = GradientMemory(network)
    memory.remember(examples)
    weight, bias = (piece.block for piece in memory.store.pieces if piece.names[0].startswith("0."))
    assert isinstance(weight, Dense)
    assert isinstance(bias, Dense)
    for row, image in zip(torch.cat([weight.G, bias.G], 1), examples[0], strict=True):
        torch.testing.assert_close(script.input_of(row), image, rtol=0, atol=1e-5)


def test_principal_directions_keep_what_they_say(script: Any, examples: tuple[Tensor, Tensor]) -> None:
    G = logit_gradients(paper_network(), *examples)
    V, energy = script.principal(G)
    torch.testing.assert_close(V @ V.mT, torch.eye(len(G), dtype=torch.float64), rtol=0, atol=1e-8)
    for r in (1, 5, 20):
        kept = (G @ V[:r].mT).square().sum() / G.square().sum()
        assert kept.item() == pytest.approx(energy[:r].sum().item())
    assert script.closest(examples[0].double(), script.first_layer(G)[0].flatten(0, 1))[0].min() > 1 - 1e-6


def test_the_record_says_what_the_page_says() -> None:
    """The claims of docs/privacy.md in words; its figures are drawn from the record."""
    record = json.loads((ROOT / "results" / "privacy.json").read_text())
    dense, *compressed = record["measured"]
    assert dense["recovered_stored"] == record["examples"]
    assert record["largest_error_dense"] < 1e-5
    for row in compressed:
        assert row["recovered_stored"] > row["recovered_unseen"] == 0
        assert row["cosine_stored"] > row["cosine_unseen"]
        assert row["inside_stored"] > row["inside_unseen"]
        assert row["bytes"] > record["factored_bytes"]
    assert compressed[-1]["told_apart"] == 1.0
