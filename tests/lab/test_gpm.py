"""GPM: what its bases hold, and what its updates leave alone. `test_methods` compares it with a naive twin."""

import pytest
import torch

from ogd.lab import methods, training
from ogd.lab.experiments import resolve
from ogd.lab.methods.gpm import extend_basis
from ogd.lab.progress import Silent
from small_lab import SCHEDULE, fit, make, stack
from test_methods import OPTIMIZERS


def examples(n, width, rank, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, rank, generator=g).double() @ torch.randn(rank, width, generator=g).double()


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize(("n", "width", "rank"), [(20, 9, 9), (5, 9, 5), (20, 9, 2), (20, 1, 1)])
def test_a_basis_is_orthonormal_holds_enough_and_no_more(n, width, rank, threshold):
    M = torch.empty(width, 0).double()
    for seed in range(3):
        A, before = examples(n, width, rank, seed), M
        M = extend_basis(M, A, threshold)
        torch.testing.assert_close(M.T @ M, torch.eye(M.shape[1]).double())
        torch.testing.assert_close(M @ M.T @ before, before)
        enough = threshold * A.square().sum()
        assert (A @ M).square().sum() >= enough * (1 - 1e-12)
        if M.shape[1] > before.shape[1]:
            assert (A @ M[:, :-1]).square().sum() < enough
    assert extend_basis(M, torch.zeros(4, width).double(), threshold).equal(M)


@pytest.mark.parametrize("kind", ["mlp", "weights"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_update_leaves_the_outputs_for_protected_inputs(tiny, kind, optimizer):
    benchmark, schedule = make("rotated", tiny), {**SCHEDULE, **OPTIMIZERS[optimizer]}
    model = stack(kind)
    method = methods.GPM(threshold_input=1.0, threshold=1.0, basis_examples=5)
    first = training.first_task(benchmark, model, training.Schedule(**schedule), Silent())
    finished = training.loop.Training(benchmark, model, method, training.Schedule(**schedule), Silent()).finished(0)
    x = finished.draw(5).x
    before = model.passing(x)[1]
    training.train(benchmark, model, method, first=first, progress=False, **schedule)
    assert (model.weights[0] - first.finished[0]["0.weight"]).abs().max() > 0.01
    torch.testing.assert_close(model.passing(x)[1], before)


def test_other_networks_are_refused(tiny):
    with pytest.raises(ValueError, match="gpm works on perceptrons only"):
        fit(make("rotated", tiny), methods.GPM(), kind="cnn")
    with pytest.raises(ValueError, match="it needs model mlp, not cnn"):
        resolve("rotated", "gpm", tiny, model="cnn")
    with pytest.raises(ValueError, match="threshold: must be at most 1"):
        resolve("rotated", "gpm", tiny, threshold=2.0)
