import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ogd import seeds
from ogd.models import StackedMLP, mlp

SIZES = (7, 5, 4, 3)


def test_initial_weights_are_those_of_nn_linear():
    stack = StackedMLP(SIZES, runs=2, seed=5)
    for run in (0, 1):
        torch.manual_seed(seeds.generator(5, run, "weights").initial_seed())
        for ours, theirs in zip(stack.module(run).parameters(), mlp(SIZES).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_a_run_is_the_same_whoever_shares_the_stack():
    many, few = StackedMLP(SIZES, runs=4), StackedMLP(SIZES, runs=[3, 1])
    for a, b in zip(many.parameters(), few.parameters(), strict=True):
        assert a[3].equal(b[0])
        assert a[1].equal(b[1])
        assert not a[0].equal(a[1])


@pytest.mark.parametrize("sizes", [SIZES, (7, 3), (7, 5, 3), (7, 6, 5, 4, 3)])
def test_stack_equals_single_modules(sizes):
    stack = StackedMLP(sizes, runs=3, dtype=torch.float64)
    x = torch.randn(3, 6, 7, dtype=torch.float64)
    expected = torch.stack([stack.module(r)(x[r]) for r in range(3)])
    torch.testing.assert_close(stack(x), expected)
    torch.testing.assert_close(stack.activations(x)[1], expected)
    torch.testing.assert_close(stack(x[0])[1], stack.module(1)(x[0]))


@pytest.mark.parametrize("sizes", [SIZES, (7, 3)])
def test_backward_by_hand_equals_autograd(sizes):
    stack = StackedMLP(sizes, runs=3, dtype=torch.float64)
    x, y = torch.randn(3, 6, 7, dtype=torch.float64), torch.randint(3, (3, 6))
    loss = F.cross_entropy(stack(x).flatten(0, 1), y.flatten(), reduction="sum") / 6
    loss.backward()
    inputs, logits = stack.activations(x)
    delta = (logits.softmax(-1) - F.one_hot(y, 3)) / 6
    for (a, d), (weight, bias) in zip(stack.backward(inputs, delta), stack.layers, strict=True):
        torch.testing.assert_close(d.mT @ a, weight.grad)
        torch.testing.assert_close(d.sum(1), bias.grad)


def test_descend_subtracts_the_gradient():
    stack = StackedMLP(SIZES, runs=2, dtype=torch.float64)
    before = copy.deepcopy(stack)
    x = torch.randn(2, 6, 7, dtype=torch.float64)
    inputs, logits = stack.activations(x)
    gradient = stack.backward(inputs, torch.randn_like(logits))
    stack.descend(gradient, lr=0.1)
    for (w, b), (w0, b0), (a, d) in zip(stack.layers, before.layers, gradient, strict=True):
        torch.testing.assert_close(w, w0 - 0.1 * d.mT @ a)
        torch.testing.assert_close(b, b0 - 0.1 * d.sum(1))


def test_conversion_both_ways():
    modules = [mlp(SIZES).double() for _ in range(3)]
    stack = StackedMLP.from_modules(modules)
    for r, module in enumerate(modules):
        for a, b in zip(stack.module(r).parameters(), module.parameters(), strict=True):
            assert a.equal(b)
    again = StackedMLP(SIZES, runs=3, dtype=torch.float64)
    again.load_state_dict(stack.state_dict())
    assert again.layers[0][0].equal(stack.layers[0][0])
    other = StackedMLP(SIZES, runs=3, dtype=torch.float64, seed=7)
    other.load_state_dict(stack.state_dict(), assign=True)
    x = torch.randn(3, 2, 7, dtype=torch.float64)
    assert other(x).equal(stack(x))
    assert other.activations(x)[1].equal(stack.activations(x)[1])


def test_the_list_of_layers_follows_copies_and_conversions():
    stack = copy.deepcopy(StackedMLP(SIZES, runs=2)).double()
    assert all(w is stack.weights[i] and b is stack.biases[i] for i, (w, b) in enumerate(stack.layers))
    assert stack.layers[0][0].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StackedMLP(784), "sizes: give whole numbers"),
        (lambda: StackedMLP(SIZES, runs=[0.5]), "runs: give how many"),
        (lambda: StackedMLP((7,)), "sizes: give at least"),
        (lambda: StackedMLP((7, 0)), "sizes: give at least"),
        (lambda: StackedMLP(SIZES, runs=0), "runs: give at least one"),
        (lambda: StackedMLP(SIZES, runs=[0, -1]), "runs: .* a number from 0"),
        (lambda: StackedMLP(SIZES, runs=2).module(5), "run: 5 is not in this stack"),
        (lambda: StackedMLP.from_modules([mlp(SIZES), mlp((7, 3))]), "modules: give networks of one shape"),
        (lambda: StackedMLP.from_modules([]), "modules: give networks of one shape"),
        (lambda: StackedMLP.from_modules([nn.Sequential(nn.Linear(2, 2), nn.Tanh())]), "modules: each must be"),
        (lambda: StackedMLP.from_modules([nn.Sequential(nn.Linear(2, 2), nn.ReLU())]), "modules: each must be"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
