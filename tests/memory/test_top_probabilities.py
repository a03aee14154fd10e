"""Outputs of many classes are kept as a distribution: the same loss and gradient as all scores give, in few bytes."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ogd.memory import ExampleMemory, load
from ogd.memory.examples.divergence import divergence_loss, divergences_of_scores
from ogd.memory.examples.examples_state import examples_from_state, examples_state
from ogd.memory.examples.kept_examples import Batch
from ogd.memory.examples.loss import reference_losses, remembered_loss, squared_change
from ogd.memory.examples.top_probabilities import MANY, K, concatenate_outputs, top_probabilities

C = 5000


class Texts(nn.Module):
    """A model with the logits of C words for every token."""

    def __init__(self, words: int = C) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(C, 16), nn.Linear(16, words, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.head(self.embed(input_ids).tanh().cumsum(1))}


def slow_loss(z: Tensor, before: Tensor, y: Tensor | None, w: Tensor, a: float) -> Tensor:
    """Return Σ w (a KL(q ‖ p) + CE), position by position, by softmax over all words and autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for t in range(len(z)):
        p, q = z[t].double().softmax(0), before[t].double().softmax(0)
        places = before[t].topk(K).indices
        kept = torch.zeros(z.shape[1], dtype=torch.bool).scatter(0, places, True)
        p = torch.cat([p[places], p[~kept].sum(0, keepdim=True)])
        q = torch.cat([q[places], q[~kept].sum(0, keepdim=True)])
        total = total + w[t] * a * (q * (q / p).log()).sum()
        if y is not None and int(y[t]) != -100:
            total = total - w[t] * z[t].double().log_softmax(0)[y[t]]
    return total


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])  # from almost uniform to almost certain
def test_loss_and_gradient_are_those_of_a_slow_loop(scale: float, labelled: bool) -> None:
    torch.manual_seed(0)
    before = scale * torch.randn(2, 3, C, dtype=torch.float64)
    z = (before + torch.randn_like(before)).requires_grad_()
    y = torch.tensor([[4, -100, 4999], [0, 1, 2]]) if labelled else None
    w = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    top = top_probabilities(before)
    found = divergence_loss(z, top, y, w, 0.7)
    wanted = slow_loss(z.flatten(0, 1), before.flatten(0, 1), None if y is None else y.flatten(), w.flatten(), 0.7)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=1e-4)  # float16
    (g,) = torch.autograd.grad(3 * found, z)
    (h,) = torch.autograd.grad(3 * wanted, z)
    torch.testing.assert_close(g, h, rtol=0, atol=1e-3 * float(h.abs().max()))
    assert not g[0, 2].any()


def test_the_gradient_is_that_of_the_loss_to_the_last_digits() -> None:
    torch.manual_seed(0)
    before, z = torch.randn(2, 3, 60, dtype=torch.float64), torch.randn(2, 3, 60, dtype=torch.float64).requires_grad_()
    y, w = torch.tensor([[4, -100, 59], [0, 1, 2]]), torch.rand(2, 3, dtype=torch.float64)
    torch.autograd.gradcheck(lambda z: divergence_loss(z, top_probabilities(before), y, w, 0.7), z)


@pytest.mark.parametrize("left_out", [0, 3])
def test_chunks_and_float32_give_the_same_loss_and_gradient(monkeypatch: pytest.MonkeyPatch, left_out: int) -> None:
    torch.manual_seed(0)
    before = 30 * torch.randn(7, C, dtype=torch.float64)
    z, y, w = before + 5 * torch.randn_like(before), torch.randint(C, (7,)), torch.rand(7, dtype=torch.float64)
    w[:left_out] = 0
    top, found = top_probabilities(before), []
    for rows, dtype in ((7, torch.float64), (3, torch.float64), (3, torch.float32)):
        monkeypatch.setattr("ogd.memory.examples.top_probabilities.CHUNK", rows * C)
        z_now = z.to(dtype).requires_grad_()
        loss = divergence_loss(z_now, top, y, w, 0.7)
        found.append((loss.detach(), *torch.autograd.grad(loss, z_now)))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-5, check_dtype=False)


def test_a_memory_is_the_same_whatever_goes_through_the_model_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sizes = memory_of_texts(), []
    monkeypatch.setattr("ogd.memory.examples.recording.SCORES_BYTES", 2 * 6 * C * 8)
    forward = Texts.forward
    monkeypatch.setattr(
        Texts, "forward", lambda self, input_ids: sizes.append(len(input_ids)) or forward(self, input_ids)
    )
    parts = memory_of_texts()
    assert max(sizes) < 4
    assert torch.equal(parts.examples.groups[0].z.logs, whole.examples.groups[0].z.logs)
    assert torch.equal(parts.examples.groups[0].z.places, whole.examples.groups[0].z.places)


def test_at_the_remembered_outputs_the_divergence_is_zero_and_half_precision_hardly_moves_it() -> None:
    torch.manual_seed(0)
    for scale in (0.01, 1, 5, 50):
        z = scale * torch.randn(20, C)
        top = top_probabilities(z)
        assert float(divergences_of_scores(z, top).max()) < 1e-5
        g = z.clone().requires_grad_()
        divergence_loss(g, top, None, torch.ones(20), 1.0).backward()
        assert g.grad is not None
        assert g.grad.abs().max() < 3e-3
        half = z.bfloat16().requires_grad_()
        divergence_loss(half, top, None, torch.ones(20), 1.0).backward()
        assert half.grad is not None
        assert half.grad.dtype is torch.bfloat16


def test_twice_the_divergence_is_the_mean_square_of_a_small_change_of_uniform_outputs() -> None:
    """So one alpha has the same weight for outputs that are kept whole, and for a distribution."""
    torch.manual_seed(0)
    before = torch.zeros(1, K + 1, dtype=torch.float64)
    change = 0.03 * torch.randn_like(before)
    z = before + change - change.mean()
    whole = remembered_loss(z, Batch(None, None, before), 0.5)
    top = remembered_loss(z, Batch(None, None, top_probabilities(before)), 0.5)
    torch.testing.assert_close(top, whole, rtol=5e-2, atol=0)


def batch_of_texts(n: int = 4, T: int = 6) -> dict[str, Tensor]:
    tokens = torch.randint(C, (n, T))
    y = torch.cat([tokens[:, 1:], torch.full((n, 1), -100)], 1)
    y[1, 2:] = -100
    return {"input_ids": tokens, "labels": y}


def memory_of_texts(**options: Any) -> ExampleMemory:
    torch.manual_seed(0)
    memory = ExampleMemory(Texts().double(), per_task=None, **options)
    memory.remember(batch_of_texts())
    return memory


def test_a_memory_keeps_texts_in_few_bytes_and_says_so(tmp_path: Path) -> None:
    memory = memory_of_texts()
    each = 6 * ((K + 1) * 2 + K * 2)
    assert memory.nbytes == 4 * (each + 6 * 2 + 6 * 2)
    shown = str(memory.explain(batch_of_texts()))
    assert f"output                   {each:,}  float16, the 32 largest log-probabilities of 5,000" in shown
    assert memory.stats().drift[0] < 1e-3
    memory.save(tmp_path / "memory.safetensors")
    again = load(tmp_path / "memory.safetensors", memory.model)
    again.draws = memory.draws
    torch.testing.assert_close(again.remembered_loss(3), memory.remembered_loss(3), rtol=0, atol=0)


def test_128_tokens_of_gpt2_take_a_thousandth_of_their_scores() -> None:
    top = top_probabilities(torch.randn(1, 128, 50_257))
    assert top.nbytes == 16_640
    assert 128 * 50_257 * 4 / top.nbytes > 1000
    assert top_probabilities(torch.randn(1, 4, 70_000)).places.max() > 65_535


def test_drift_is_the_weighted_change_of_log_probabilities() -> None:
    torch.manual_seed(0)
    memory = ExampleMemory(Texts().double(), per_task=None)
    with torch.no_grad():
        memory.model.head.weight.mul_(20)  # few words are likely
    memory.remember(batch_of_texts())
    batch = next(iter(memory.examples.batches(torch.arange(4))))
    before = memory.model(**batch.x)["logits"].detach()
    with torch.no_grad():
        memory.model.head.weight.add_(1e-2 * torch.randn_like(memory.model.head.weight))
    change = memory.model(**batch.x)["logits"].detach() - before
    q = before.softmax(-1)
    squares = (q * (change - (q * change).sum(-1, keepdim=True)).square()).sum(-1)[batch.y != -100]
    assert memory.stats().drift[0] == pytest.approx(float(squares.mean().sqrt()), rel=0.1)


@pytest.mark.parametrize("labels", [True, False])
def test_references_are_the_losses_of_the_kept_and_of_their_mean_distribution(labels: bool) -> None:
    torch.manual_seed(0)
    z = 3 * torch.randn(3, 4, C)
    z[..., :3] += 30
    y = torch.randint(3, (3, 4))
    y[0, 1] = -100
    batch = Batch(None, y, top_probabilities(z))
    start, constant = reference_losses(batch, 0.5, labels)
    assert start == pytest.approx(float(remembered_loss(z, batch, 0.5, labels)), abs=5e-3)
    w = (y != -100) / (y != -100).sum(1, keepdim=True)
    mean = (w.unsqueeze(-1) * z.softmax(-1)).sum((0, 1)) / 3
    wanted = float(remembered_loss(mean.log().expand(3, 4, C), batch, 0.5, labels))
    assert constant == pytest.approx(wanted, rel=0.05)


def test_groups_of_distributions_are_joined_selected_and_moved_like_tensors() -> None:
    torch.manual_seed(0)
    memory = memory_of_texts()
    memory.remember(batch_of_texts(3))
    assert len(memory.examples.groups) == 1
    (batch,) = memory.examples.batches(torch.tensor([5, 0, 2]))
    alone = [next(iter(memory.examples.batches(torch.tensor([i])))) for i in (5, 0, 2)]
    assert torch.equal(batch.z.logs, concatenate_outputs([one.z for one in alone]).logs)
    assert [len(part) for part in batch.split(2)] == [2, 1]
    memory.forget(0)
    assert memory.task_sizes == (3,)
    small = ExampleMemory(memory.model, budget=memory.nbytes * 3 // 2, shrink=True)
    for _ in range(3):
        small.remember(batch_of_texts(3))
    assert min(small.task_sizes) >= 1
    stream = ExampleMemory(memory.model, per_task=5)
    for _ in range(4):
        batch = batch_of_texts()
        stream.observe({"input_ids": batch["input_ids"]}, batch["labels"])
    assert stream.task_sizes == (5,)
    assert copy.deepcopy(memory).nbytes == memory.nbytes


def test_what_is_no_distribution_is_kept_whole() -> None:
    torch.manual_seed(0)
    wide, tokens = nn.Linear(4, C), torch.randint(C, (4, 6))
    for model, data in [
        (wide, (torch.randn(4, 4), torch.randn(4, C))),  # a regression
        (wide, (torch.randn(4, 4), None)),  # nothing says what its outputs are
        (Texts(), ({"input_ids": tokens}, None)),
        (Texts(MANY), {"input_ids": tokens, "labels": torch.randint(MANY, (4, 6))}),  # few outputs
    ]:
        memory = ExampleMemory(model)
        memory.remember(data)
        assert isinstance(memory.examples.groups[0].z, Tensor), data
    memory = ExampleMemory(wide)
    memory.remember((torch.randn(4, 4), torch.tensor([0, 1, 2, 4999])))
    assert not isinstance(memory.examples.groups[0].z, Tensor)


def test_a_head_with_a_distribution_may_grow() -> None:
    torch.manual_seed(0)
    model = Texts()
    memory = ExampleMemory(model)
    batch = batch_of_texts()
    memory.remember(batch)
    larger = nn.Linear(16, C + 100, bias=False)
    with torch.no_grad():
        larger.weight[:C] = model.head.weight
    model.head = larger
    found = memory.remembered_loss(4, alpha=1)
    z = model(batch["input_ids"])["logits"]
    each = functional.cross_entropy(z.movedim(-1, 1), batch["labels"], reduction="none").sum(1)
    wanted = (each / (batch["labels"] != -100).sum(1)).mean()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)  # the old outputs have not changed


DAMAGE = {
    "outputs": lambda entry, tensors: entry.update(outputs=10),
    "positive": lambda entry, tensors: tensors["0.z"].fill_(1),
    "dtype": lambda entry, tensors: tensors.update({"0.z": tensors["0.z"].float()}),
    "twice": lambda entry, tensors: tensors["0.places"].zero_(),
    "beyond": lambda entry, tensors: tensors["0.places"].add_(C // 2),
    "shape": lambda entry, tensors: tensors.update({"0.places": tensors["0.places"][..., 1:]}),
    "none": lambda entry, tensors: tensors.pop("0.places"),
    "whole": lambda entry, tensors: entry.update(outputs=None),
    "not finite": lambda entry, tensors: tensors["0.z"].fill_(math.nan),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_distribution_is_refused(name: str) -> None:
    state = copy.deepcopy(examples_state(memory_of_texts().examples))
    assert examples_from_state(copy.deepcopy(state)).nbytes == memory_of_texts().nbytes
    DAMAGE[name](state["groups"][0], state["tensors"])
    with pytest.raises(ValueError, match=r"group 0|incomplete|no group|33 outputs"):
        examples_from_state(state)


def test_padding_of_unlabelled_texts_does_not_count() -> None:
    torch.manual_seed(0)
    z, mask = torch.randn(2, 3, 7), torch.tensor([[1, 1, 0], [1, 1, 1]])
    now = z + torch.randn(2, 3, 7)
    batch = Batch({"attention_mask": mask}, None, z)
    each = (now - z).square().mean(-1)
    wanted = 0.5 * (each[0, :2].mean() + each[1].mean())
    torch.testing.assert_close(remembered_loss(now, batch, 0.5), wanted)
    assert squared_change(now, batch)[2] == 5 * 7
