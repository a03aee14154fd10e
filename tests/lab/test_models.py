import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ogd import seeds
from ogd.lab.models import StackedMLP, StackedModules, cnn, mlp

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


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("sizes", [SIZES, (7, 3), (7, 5, 3), (7, 6, 5, 4, 3)])
def test_stack_equals_single_modules(sizes, biases):
    stack = StackedMLP(sizes, runs=3, biases=biases, dtype=torch.float64)
    assert [name for name, _ in stack.module(0).named_parameters()] == list(stack.params)
    assert StackedMLP.from_modules([stack.module(r) for r in range(3)]).params.keys() == stack.params.keys()
    x = torch.randn(3, 6, 7, dtype=torch.float64)
    expected = torch.stack([stack.module(r)(x[r]) for r in range(3)])
    torch.testing.assert_close(stack(x), expected)
    torch.testing.assert_close(stack.passing(x)[1], expected)
    torch.testing.assert_close(stack(x[0])[1], stack.module(1)(x[0]))
    torch.testing.assert_close(stack.logits(x[0])[1], stack.module(1)(x[0]))


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("sizes", [SIZES, (7, 3)])
def test_backward_by_hand_equals_autograd(sizes, biases):
    stack = StackedMLP(sizes, runs=3, biases=biases, dtype=torch.float64)
    x, y = torch.randn(3, 6, 7, dtype=torch.float64), torch.randint(3, (3, 6))
    loss = F.cross_entropy(stack(x).flatten(0, 1), y.flatten(), reduction="sum") / 6
    loss.backward()
    tape, logits = stack.passing(x)
    delta = (logits.softmax(-1) - F.one_hot(y, 3)) / 6
    for g, w in zip(stack.backward(tape, delta).tensors(), stack.params.values(), strict=True):
        torch.testing.assert_close(g, w.grad)


def stacks(biases=True):
    """The same networks twice: by hand, and by torch.func."""
    by_hand = StackedMLP(SIZES, runs=2, biases=biases, dtype=torch.float64)
    return by_hand, StackedModules([by_hand.module(0), by_hand.module(1)])


def gradients(stack, seed):
    g = torch.Generator().manual_seed(seed)
    x, delta = torch.randn(2, 6, 7, generator=g).double(), torch.randn(2, 6, 3, generator=g).double()
    tape, _ = stack.passing(x)
    return stack.backward(tape, delta), stack.squares(tape, delta)


@pytest.mark.parametrize("biases", [True, False])
def test_a_stack_of_modules_equals_the_stack_by_hand(biases):
    by_hand, modules = stacks(biases)
    assert list(by_hand.params) == list(modules.params)
    x, columns = torch.randn(5, 7).double(), torch.stack([torch.randperm(7), torch.randperm(7)])
    torch.testing.assert_close(by_hand.logits(x), modules.logits(x))
    torch.testing.assert_close(by_hand.logits(x, columns), modules.logits(x, columns))
    (g, squares), (h, others) = gradients(by_hand, 1), gradients(modules, 1)
    torch.testing.assert_close(g.tensors(), h.tensors())
    torch.testing.assert_close(squares, others)
    one_by_one = [gradients_of_one(modules, i) for i in range(6)]
    for k, square in enumerate(squares):
        torch.testing.assert_close(square, sum(g[k] ** 2 for g in one_by_one) / 6)


def gradients_of_one(stack, i):
    g = torch.Generator().manual_seed(1)
    x, delta = torch.randn(2, 6, 7, generator=g).double(), torch.randn(2, 6, 3, generator=g).double()
    tape, _ = stack.passing(x[:, i : i + 1])
    return stack.backward(tape, delta[:, i : i + 1]).tensors()


@pytest.mark.parametrize("stack", stacks(), ids=["by hand", "modules"])
def test_what_a_gradient_can_do(stack):
    (g, _), (h, _), c = gradients(stack, 1), gradients(stack, 2), torch.tensor([2.0, -3.0]).double()
    pairs = list(zip(g.tensors(), h.tensors(), strict=True))
    torch.testing.assert_close(g.dot(h), sum((a * b).flatten(1).sum(1) for a, b in pairs))
    torch.testing.assert_close(g.plus(h).tensors(), [a + b for a, b in pairs])
    expected = [a + c.view(-1, *[1] * (b.ndim - 1)) * b for a, b in pairs]
    torch.testing.assert_close(g.plus(h, c).tensors(), expected)
    before = [torch.randn_like(a) for a, _ in pairs]
    moved, gathered = [w.clone() for w in before], [w.clone() for w in before]
    g.descend(moved, 0.1)
    torch.testing.assert_close(moved, [w - 0.1 * a for w, (a, _) in zip(before, pairs, strict=True)])
    g.accumulate(gathered, 0.9)
    torch.testing.assert_close(gathered, [0.9 * w + a for w, (a, _) in zip(before, pairs, strict=True)])


@pytest.mark.parametrize("init", ["glorot", "he"])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_initial_weights_by_name(init, kind):
    heads = [(0, 1, 2), (3, 4, 5, 6, 7, 8, 9)]
    if kind == "mlp":
        stack = StackedMLP((784, 300, 10), runs=2, init=init, heads=heads)
    else:
        stack = StackedModules.made(cnn, runs=2, init=init, heads=heads)
    for name, w in stack.params.items():
        if name.endswith("bias"):
            assert not w.any()
            continue
        fan_in, outputs, field = w[0, 0].numel(), w.shape[1], w[0, 0, 0].numel()
        for group in heads if w is list(stack.params.values())[-2] else [range(outputs)]:
            fan_out = len(group) * field
            bound = (6 / (fan_in + (fan_out if init == "glorot" else 0))) ** 0.5
            drawn = w.detach()[:, list(group)]
            assert 0.9 * bound < float(drawn.abs().max()) <= bound * (1 + 1e-6)
            assert float(drawn.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert not w[0].equal(w[1])


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 9, 11), (3, 32, 32)])
def test_a_cnn_takes_images_from_8_by_8(shape):
    assert cnn(shape, outputs=4)(torch.rand(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: cnn((1, 7, 8)), ValueError, "model: a cnn takes images"),
        (lambda: cnn((64,)), ValueError, "model: a cnn takes images"),
        (lambda: StackedModules([nn.Sequential(nn.BatchNorm1d(3))]), ValueError, "model: 0 keeps batch statistics"),
        (lambda: StackedModules([nn.InstanceNorm1d(3, track_running_stats=True)]), ValueError, "batch statistics"),
        (lambda: StackedModules([nn.Sequential(nn.Dropout(0.1))]), ValueError, "model: 0 draws at random"),
        (lambda: StackedModules([nn.Linear(2, 2)], runs=[1, 2]), ValueError, "runs: 2 numbers do not fit 1 modules"),
        (lambda: StackedModules([nn.ReLU()]), ValueError, "model: has no parameters"),
        (lambda: StackedModules([3]), TypeError, "model: must be an nn.Module, not int"),
        (lambda: StackedModules.made(lambda: 3), TypeError, "must be a function that returns an nn.Module, not int"),
        (
            lambda: StackedModules([nn.Sequential(nn.Linear(2, 2), nn.Flatten(0))]).logits(torch.rand(2, 2)),
            TypeError,
            "to logits .* not to a tensor",
        ),
        (lambda: StackedModules.made(cnn, init="xavier"), ValueError, "init: there is no 'xavier'"),
    ],
)
def test_what_a_stack_of_modules_refuses(make, error, message):
    with pytest.raises(error, match=message):
        make()


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
    assert other.passing(x)[1].equal(stack.passing(x)[1])


def test_the_list_of_layers_follows_copies_and_conversions():
    stack = copy.deepcopy(StackedMLP(SIZES, runs=2)).double()
    assert all(w is stack.weights[i] and b is stack.biases[i] for i, (w, b) in enumerate(stack.layers))
    assert stack.layers[0][0].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StackedMLP(784), "sizes: give whole numbers"),
        (lambda: StackedMLP(SIZES, runs=[0.5]), "runs: give how many"),
        (lambda: StackedMLP((7,)), "sizes: give whole numbers"),
        (lambda: StackedMLP((7, 0)), "sizes: give whole numbers"),
        (lambda: StackedMLP((7, 2.5)), "sizes: give whole numbers"),
        (lambda: StackedMLP(SIZES, runs=0), "runs: give how many, at least one"),
        (lambda: StackedMLP(SIZES, runs=[0, -1]), "runs: .* from 0"),
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
