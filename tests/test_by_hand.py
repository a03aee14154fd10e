"""EWC and A-GEM of the measurements' loops."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

PATH = Path(__file__).parents[1] / "measurements" / "by_hand.py"


@pytest.fixture(scope="module")
def by_hand() -> Any:
    spec = importlib.util.spec_from_file_location("by_hand", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_of_agem_does_not_raise_the_reference_loss(by_hand: Any, sign: int) -> None:
    params = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))]
    reference = [torch.randn_like(p) for p in params]
    for p, r in zip(params, reference, strict=True):
        p.grad = sign * r + 0.1 * torch.randn_like(p)
    before = [p.grad.clone() for p in params]
    by_hand.agem(params, reference)
    dot = sum(float((p.grad * r).sum()) for p, r in zip(params, reference, strict=True))
    if sign > 0:
        assert all(torch.equal(p.grad, g) for p, g in zip(params, before, strict=True))
    else:
        assert dot == pytest.approx(0, abs=1e-4)


def test_consolidation_adds_the_gradient_of_all_penalties(by_hand: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    params = list(model.parameters())
    ewc, penalties = by_hand.Consolidation(7.0), []
    for _ in range(2):
        x, y = torch.randn(5, 4).double(), torch.randint(3, (5,))
        ewc.remember(params, (cross_entropy(model(x[[i]]), y[[i]]) for i in range(5)))
        grads = [torch.autograd.grad(cross_entropy(model(x[[i]]), y[[i]]), params) for i in range(5)]
        fisher = [torch.stack([g**2 for g in column]).mean(0) for column in zip(*grads, strict=True)]
        penalties.append((fisher, [p.detach().clone() for p in params]))
        with torch.no_grad():
            for p in params:
                p.add_(torch.randn_like(p))
    loss = sum(3.5 * (f * (p - w) ** 2).sum() for F, W in penalties for f, p, w in zip(F, params, W, strict=True))
    expected = torch.autograd.grad(loss, params)
    for p in params:
        p.grad = torch.ones_like(p)
    ewc.add_gradient(params)
    for p, g in zip(params, expected, strict=True):
        torch.testing.assert_close(p.grad, 1 + g)
