"""Many directions, half precision, what a memory explains of itself, and what long work announces."""

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from memory_models import make, remembered, rows, train
from ogd.long_work import LongWork, warn_if_long
from ogd.memory import GradientMemory, load
from ogd.memory.gradients.gather import CHUNK_SIZE, fitting_chunk_size
from ogd.memory.gradients.outputs import ChosenOutputs
from ogd.memory.loading import KINDS
from ogd.memory.projection.pseudo_inverse import cholesky, cutoff, solve, whitener
from ogd.memory.projection.solve import conjugate_gradients
from reference import flat, logit_gradients, project_dense


def test_a_cholesky_factor_is_extended_and_solves_as_the_pseudo_inverse_does() -> None:
    torch.manual_seed(0)
    G = torch.randn(7, 12, dtype=torch.float64) * torch.logspace(-3, 3, 7, dtype=torch.float64).unsqueeze(1)
    K, s = G @ G.mT, torch.randn(7, dtype=torch.float64)
    W = whitener(K, cutoff(7, torch.float64))
    for known in (cholesky(K), cholesky(K, cholesky(K[:4, :4]))):
        assert known is not None
        torch.testing.assert_close(solve(known, s), W.mT @ (W @ s), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", ["duplicate", "zero", "almost"])
def test_a_badly_conditioned_K_has_no_cholesky_factor(kind: str) -> None:
    G = torch.randn(5, 12, dtype=torch.float64)
    G[4] = {"duplicate": G[0], "zero": 0 * G[0], "almost": G[0] + 1e-7 * G[1]}[kind]
    assert cholesky(G @ G.mT) is None
    assert cholesky(G @ G.mT, cholesky(G[:4] @ G[:4].mT)) is None


@pytest.mark.parametrize("name", ["mlp", "transformer", "lenet"])
def test_without_K_the_projection_is_that_of_the_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogd.memory.projection.projector.DIRECT", 2)
    monkeypatch.setattr("ogd.memory.projection.solve.conjugate_gradients.__defaults__", (1e-12, 500))
    memory, G, _, _ = remembered(name)
    update = {n: torch.randn_like(p) for n, p in memory.model.named_parameters()}
    projected = memory.project(update)
    assert not memory.store.grams  # K was not formed
    torch.testing.assert_close(flat(list(projected.values())), project_dense(G, flat(list(update.values()))))


def test_half_precision_takes_half_the_bytes_and_keeps_a_looser_guarantee() -> None:
    drifts = {}
    for dtype in (None, torch.bfloat16):
        model, x, y = make("mlp", dtype=torch.float32)
        memory = GradientMemory(model, dtype=dtype)
        memory.remember((x, y))
        assert memory.nbytes == (2 if dtype else 4) * len(x) * sum((12 + 10, 10 + 9, 9 + 4))
        G = logit_gradients(copy.deepcopy(model).double(), x.double(), y)
        update = {n: torch.randn_like(p) for n, p in model.named_parameters()}
        left = flat(list(memory.project(update).values()))
        drifts[dtype] = float((G @ left).norm() / (G @ flat(list(update.values()))).norm())
    assert drifts[None] < 1e-5
    assert 1e-5 < drifts[torch.bfloat16] < 0.05


def test_dtype_is_saved_and_checked(tmp_path) -> None:
    model, x, y = make("mlp", dtype=torch.float32)
    memory = GradientMemory(model, dtype=torch.bfloat16)
    memory.remember((x, y))
    memory.save(tmp_path / "m")
    loaded = load(tmp_path / "m", model)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(rows(loaded), rows(memory))
    with pytest.raises(TypeError, match="dtype must be None or a floating-point type"):
        GradientMemory(model, dtype=torch.int8)


def test_explain_names_every_parameter_and_stores_nothing() -> None:
    model, x, y = make("tied")
    model.twice.bias.requires_grad_(False)
    memory = GradientMemory(model)
    explanation = memory.explain((x, y))
    assert not len(memory)
    assert {name for entry in explanation.entries for name in entry.names} == {n for n, _ in model.named_parameters()}
    assert "used 2 times" in str(explanation)
    assert "not protected: frozen" in str(explanation)
    memory.remember((x, y))
    assert explanation.nbytes == memory.nbytes // len(memory)
    refused = GradientMemory(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)))
    assert "refused: 1 normalises by the batch" in str(refused.explain((torch.randn(5, 3), torch.zeros(5).long())))


@pytest.mark.parametrize("keep", ["gradients", "examples"])
def test_explain_refuses_empty_data(keep: Literal["gradients", "examples"]) -> None:
    model, x, y = make("mlp")
    with pytest.raises(ValueError, match="data is empty: there is no example to explain"):
        KINDS[keep](model).explain((x[:0], y[:0]))


def test_stats_tell_what_was_kept_and_how_far_outputs_have_moved() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    assert memory.stats().drift == ()
    memory.remember((x, y))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(x).gather(1, y[:, None]).detach()
    train(model, optimizer, *make("mlp", seed=1)[1:], steps=1)  # unprotected
    moved = float((model(x).gather(1, y[:, None]) - before).square().mean().sqrt().detach())
    assert memory.stats().drift[0] == pytest.approx(moved, rel=0.2)
    with pytest.warns(UserWarning, match="moved without protection"):
        memory.remember((x, y))
    first = memory.stats().drift
    assert first[0] == pytest.approx(moved, rel=0.2)
    assert first[1] == 0
    memory.protect(optimizer, every=1)
    train(model, optimizer, *make("mlp", seed=1)[1:], steps=2)
    stats = memory.stats()
    assert stats.drift == pytest.approx(first, abs=1e-9)
    assert 0 < stats.kept[0] < 1
    assert (stats.directions, stats.rank, stats.left) == (12, 12, 1 - 12 / stats.capacity)


@pytest.mark.filterwarnings("ignore:.*moved without protection")
def test_drift_adds_up_from_the_end_of_each_task() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()  # linear, so that the first order is all there is
    memory, outputs = GradientMemory(model, outputs="all"), list[tuple[Tensor, Tensor]]()
    for n in (4, 2, 3):
        x = torch.randn(n, 5).double()
        memory.remember((x, None))
        outputs.append((x, model(x).detach()))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        now = [float((model(x) - old).square().mean().sqrt().detach()) for x, old in outputs]
        assert memory.stats().drift == pytest.approx(now, rel=1e-12)


def test_an_update_that_is_cut_to_nothing_is_warned_of_once() -> None:
    model = nn.Linear(2, 1)
    memory = GradientMemory(model, outputs="all")
    memory.remember((torch.randn(9, 2), None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    model(torch.randn(3, 2)).sum().backward()
    with pytest.warns(UserWarning, match="of an update is left after its projection"):
        optimizer.step()
    optimizer.step()  # warnings are errors here: a second one would fail


def test_long_work_is_announced_before_it_starts() -> None:
    warn_if_long("this", 9, 10**8)
    with pytest.warns(LongWork, match=r"this: will take about 12 s and 2.0 GB"):
        warn_if_long("this", 12, 2 * 10**9)


@pytest.mark.parametrize(("keep", "said"), [("gradients", "remembering"), ("examples", "keeping")])
def test_much_to_remember_is_announced_when_a_part_of_it_is_known(keep: str, said: str) -> None:
    n = 2**20
    memory = KINDS[keep](nn.Linear(1000, 3), per_task=n)
    data = torch.zeros(1, 1000).expand(n, 1000), torch.zeros(1).long().expand(n)
    with pytest.raises(LongWork, match=rf"{said} up to 1,048,576 examples.* a moment and 4\.2 GB"):  # an error here
        memory.remember(data)
    assert len(memory) == 0


def test_a_row_of_a_large_data_set_counts_as_a_row() -> None:
    model, data = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(2_000_000, 6)
    chosen = ChosenOutputs(model, "true", None, None)
    row, label = data[:1], torch.zeros(1, dtype=torch.long)
    assert fitting_chunk_size(chosen, row, label) == fitting_chunk_size(chosen, row.clone(), label) == CHUNK_SIZE


def test_conjugate_gradients_stop_at_once_where_nothing_is_a_number() -> None:
    s = torch.full((3,), torch.nan).double()
    assert conjugate_gradients(lambda v: 2 * v, s, lambda r: r)[1] == 0


def test_conjugate_gradients_are_as_exact_for_small_updates_as_for_large_ones() -> None:
    torch.manual_seed(0)
    A, s = torch.randn(20, 20).double(), torch.randn(20).double()
    K = A @ A.mT
    once, steps = conjugate_gradients(lambda v: K @ v, s, lambda r: r)
    assert (s - K @ once).norm() <= 1e-3 * s.norm()
    assert 5 < steps < 100
    for scale in (2.0**-20, 2.0**20):
        c, took = conjugate_gradients(lambda v: K @ v, scale * s, lambda r: r)
        assert took == steps
        torch.testing.assert_close(c, scale * once)
    assert conjugate_gradients(lambda v: K @ v, s, lambda r: r, most=3)[1] == 3
