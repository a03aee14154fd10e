"""The mathematics of the scripts on the paper's assumptions, against autograd and by identities, in float64."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from ogd.lab.models import StackedMLP, loss_gradient
from reference import logit_gradients

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch uses it for jvp
FOLDER = Path(__file__).parents[1] / "measurements" / "projection"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gram(*rows: Tensor) -> Tensor:
    G = torch.cat(rows, 1)
    return G @ G.mT


def test_changes_are_those_of_the_gradients_written_out() -> None:
    G, after = random(2, 5, 30), random(2, 5, 30, seed=1)
    of_G, of_K = script("widths").changes(gram(G, after))
    K, K_after = G @ G.mT, after @ after.mT
    torch.testing.assert_close(of_G, (after - G).flatten(1).norm(dim=1) / G.flatten(1).norm(dim=1))
    torch.testing.assert_close(of_K, (K_after - K).flatten(1).norm(dim=1) / K.flatten(1).norm(dim=1))


def test_nothing_changes_without_training_and_everything_by_a_factor() -> None:
    G = random(2, 5, 30)
    changes = script("widths").changes
    for factor, of_G, of_K in ((1, 0, 0), (3, 2, 8)):
        for found, expected in zip(changes(gram(G, factor * G)), (of_G, of_K), strict=True):
            torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-12, atol=1e-7)


def test_a_linearised_stack_is_that_of_torch_func() -> None:
    start = StackedMLP((6, 7, 8, 3), runs=2, dtype=torch.float64)
    for w in start.params.values():
        w.requires_grad_(False)
    model = script("widths").linearised(start)
    x, target = random(2, 5, 6), torch.eye(3, dtype=torch.float64)[torch.arange(10) % 3].view(2, 5, 3)
    torch.testing.assert_close(model.passing(x)[1], start.passing(x)[1])  # before any step
    with torch.no_grad():
        for i, w in enumerate(model.params.values()):
            w.add_(random(*w.shape, seed=i))
    tape, z = model.passing(x)
    gradient = model.backward(tape, loss_gradient(z, target, None)).tensors()
    for r in range(2):
        weights = {name: w[r].detach() for name, w in start.params.items()}
        w = {name: p[r].detach().requires_grad_() for name, p in model.params.items()}
        moved = {name: w[name] - weights[name] for name in w}
        network, inputs = start.module(r), x[r]

        def f(w: dict[str, Tensor], network: nn.Module = network, inputs: Tensor = inputs) -> Tensor:
            return functional_call(network, w, (inputs,))

        value, change = jvp(f, (weights,), (moved,))
        torch.testing.assert_close(z[r], (value + change).detach())
        loss = nn.functional.cross_entropy(value + change, target[r])
        for g, expected in zip(gradient, torch.autograd.grad(loss, list(w.values())), strict=True):
            torch.testing.assert_close(g[r], expected)


def networks(*layers: nn.Module) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """A network, its weights w*, and w − w*."""
    torch.manual_seed(0)
    network = nn.Sequential(*layers).double()
    start = {name: w.detach().clone() for name, w in network.named_parameters()}
    return network, start, {name: random(*w.shape, seed=i) for i, (name, w) in enumerate(start.items())}


@pytest.mark.parametrize(("quadratic", "scale"), [(True, 1.0), (False, 1e-3), (False, 0.0)])
def test_a_correction_of_second_order_is_exact_where_the_model_is_quadratic(quadratic: bool, scale: float) -> None:
    middle = [] if quadratic else [nn.Tanh()]  # two linear layers are quadratic in their weights
    network, start, moved = networks(nn.Linear(4, 5), *middle, nn.Linear(5, 3))
    moved = {name: scale * change for name, change in moved.items()}
    x, y = random(6, 4), torch.arange(6) % 3
    rows = script("orders").corrected(network, start, moved, x, torch.eye(3, dtype=torch.float64)[y])
    stale = logit_gradients(network, x, y)
    network.load_state_dict({name: w + moved[name] for name, w in start.items()})
    error = (torch.cat(list(rows.values()), 1) - logit_gradients(network, x, y)).norm().item()
    uncorrected = (stale - logit_gradients(network, x, y)).norm().item()
    assert error <= (1e-12 if quadratic or not scale else 20 * scale * uncorrected)
    assert uncorrected > 10 * error or not scale


def test_the_overlap_is_0_for_orthogonal_and_1_for_equal_spaces() -> None:
    overlap = script("overlap").overlap
    Q = torch.linalg.qr(random(20, 20))[0]
    ours, theirs = (random(4, 6, seed=1) @ Q[:6])[None], (random(5, 6, seed=2) @ Q[6:12])[None]
    mixed = random(1, 4, 4, seed=3) @ ours
    for other, expected in ((theirs, 0.0), (mixed, 1.0)):
        torch.testing.assert_close(overlap(gram(ours, other), 4), torch.tensor([expected]).double())
    half = torch.cat([ours, theirs], 1)
    share = ours.square().sum() / half.square().sum()
    torch.testing.assert_close(overlap(gram(ours, half), 4), share[None])
