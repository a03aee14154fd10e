"""Two ranks under Trainer: every rank takes part in saving a memory, also a sharded one, and one of them writes it."""

import os

import pytest
import torch
import torch.distributed as dist

import ogd
import torchvision_operators  # noqa: F401  the ranks' processes read no conftest.py
from two_ranks import on_ranks, results

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'ogd[hf]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'ogd[hf]'")
from small_bert import A, B, bert, train

from ogd.integrations.transformers import FILE, OGDCallback


def two_tasks(folder, sharded):
    """Train both tasks and save inside each; what this rank holds at the end, and what a file should hold."""
    model, callback = bert(), OGDCallback(ogd.GradientMemory, per_task=8, every=5, sharded=sharded)
    options = {"save_strategy": "steps", "save_steps": 4, "ddp_backend": "gloo", "max_steps": 8}
    train(model, callback, A, folder / "a", **options)
    trained = train(model, callback, B, folder / "b", **options)
    assert trained.args.world_size == 2
    assert trained.args.should_save == (dist.get_rank() == 0)
    return callback.memory.nbytes, dict(callback.memory.state_dict()["tensors"])


def whole_and_sharded(folder):
    rank = str(dist.get_rank())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}  # as torchrun does
    return [two_tasks(folder / name, name == "sharded") for name in ("whole", "sharded")]


def test_every_rank_takes_part_and_one_writes(tmp_path):
    answers = results(on_ranks(tmp_path, whole_and_sharded, tmp_path, patience=180))  # importing takes long
    for name, *ranks in zip(("whole", "sharded"), *answers, strict=True):
        for folder, tasks in [("a", (8,)), ("b/checkpoint-4", (8,)), ("b", (8, 8))]:
            saved = ogd.load(tmp_path / name / folder / FILE, bert())
            assert saved.task_sizes == tasks
        held = sum(nbytes for nbytes, _ in ranks)
        assert held == (saved.nbytes if name == "sharded" else 2 * saved.nbytes)
        for _, tensors in ranks:
            torch.testing.assert_close(tensors, dict(saved.state_dict()["tensors"]))
