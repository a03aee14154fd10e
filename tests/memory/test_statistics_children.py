"""Held modules with children: evaluation mode is for the module alone, and finding that out leaves no trace."""

import copy

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memory_models import train
from ogd.memory import ExampleMemory, GradientMemory, Memory
from test_protect_statistics import Activated, Counter, buffers, data, net, remembered


def whole(*layers: nn.Module) -> Counter:
    """A model that has a buffer itself."""
    torch.manual_seed(0)
    return Counter(nn.Linear(5, 6), *layers, nn.ReLU(), nn.Linear(6, 3)).double()


def remembering(model: nn.Module) -> Memory:
    memory = GradientMemory(model, outputs="all")
    x, y = data(0)
    memory.remember((x[:4], y[:4]))
    return memory


@pytest.mark.parametrize("keep", ["gradients", "examples"])
@pytest.mark.parametrize("after", [nn.SiLU, lambda: nn.Dropout(0.3)])
def test_a_norm_that_owns_its_activation_learns_as_one_that_is_followed_by_it(after, keep) -> None:
    learned = []
    for norm in (Activated(after()), nn.Sequential(nn.BatchNorm1d(6), after())):
        memory, model, old = remembered(norm, keep=keep)
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        memory.protect(optimizer, every=1)
        torch.manual_seed(1)
        train(model, optimizer, *data(1, shift=2.0), 20)
        learned.append((*model.parameters(), *model.buffers(), model.eval()(old)))
    for one, other in zip(*learned, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_only_the_module_itself_runs_in_evaluation_mode() -> None:
    model = whole(nn.Dropout(0.5), nn.BatchNorm1d(6))
    memory, (x, _) = remembering(model), data(1)
    held = []
    model.net[2].register_forward_pre_hook(lambda norm, _: held.append(norm.training))
    for first in (True, False):
        model.modes.clear()
        held.clear()
        assert not torch.equal(model(x), model(x))  # dropout
        assert [modes[0] for modes in model.modes] == ([True, False] * first + [False, False])
        assert all(all(modes[1:]) for modes in model.modes)  # children are set when they are called
        assert not any(held[-2:])
        assert all(module.training for module in model.modules())
    assert memory._statistics.names == {"", "net.2"}


def test_the_first_pass_draws_what_any_other_does() -> None:
    model = whole(Activated(nn.Dropout(0.5)), nn.Dropout(0.5))
    memory, (x, _) = remembering(model), data(1)
    passes = []
    for _ in range(3):
        torch.manual_seed(3)
        passes.append((model(x), torch.rand(3)))
    for later in passes[1:]:
        for one, other in zip(passes[0], later, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert memory._statistics.names == {"", "net.1"}


class TwoBranches(Counter):
    """Counts over two norms, of which a remembered output needs one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor, both: bool = False) -> Tensor:
        x = super().forward(x)
        return self.head(self.a(x) + self.b(x) if both else self.a(x))


def test_modules_inside_that_are_not_held_see_each_pass_once() -> None:
    model = TwoBranches().double()
    memory, (x, _) = remembering(model), data(1, shift=2.0)
    alone = copy.deepcopy(model.b)
    for _ in range(2):
        model(x, both=True)
        alone(x)
        assert all(torch.equal(one, other) for one, other in zip(model.b.buffers(), alone.buffers(), strict=True))
    assert memory._statistics.names == {"", "a"}
    assert model.step == 0


class Rectified(Counter):
    """Changes its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.add_(1.0) if self.training else x + 1.0)


def test_inputs_that_a_pass_changes_in_place_are_changed_once() -> None:
    memory, model, _ = remembered(Rectified(nn.Linear(6, 6)))
    x, _ = data(1)
    for _ in range(2):
        torch.testing.assert_close(model.train()(x), model.eval()(x))
    assert model[1].step == buffers(model)["1.step"]
    assert memory._statistics.names == {"1"}


class Aside(Activated):
    """Returns a loss of its own in training mode, as detectors and mixtures of experts do."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        z = super().forward(x)
        return (z, z.square().mean()) if self.training else z


class Detached(Activated):
    """Has no gradient in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.training):
            return super().forward(x)


@pytest.mark.parametrize("kind", [Aside, Detached])
def test_a_module_that_gives_something_else_in_training_stays_in_training_mode(kind) -> None:
    torch.manual_seed(0)
    norm, head = kind(nn.Tanh()), nn.Linear(6, 3)
    model = nn.ModuleList([norm, head]).double()
    memory = ExampleMemory(model, logits=lambda m, x: m[1](m[0](x)))
    x = torch.randn(8, 6, dtype=torch.float64)
    memory.remember((x, torch.zeros(8).long()))
    before = buffers(norm)
    with pytest.warns(UserWarning, match="of another form: .* are dropped after each pass"):
        out = norm(x)
    assert isinstance(out, tuple) == (kind is Aside)
    assert (out[1] if kind is Aside else out).requires_grad
    assert all(torch.equal(b, before[name]) for name, b in norm.named_buffers())


class Checkpointed(nn.Module):
    def __init__(self, norm: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(5, 6), nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU())
        self.head, self.reentrant = nn.Linear(6, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(checkpoint(self.body, x, use_reentrant=self.reentrant) if self.training else self.body(x))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm1d(6), lambda: Activated(nn.Dropout(0.5))])
def test_checkpointed_activations_are_the_same_when_computed_again(norm, reentrant) -> None:
    torch.manual_seed(0)
    model = Checkpointed(norm(), reentrant=reentrant).double()
    plain = copy.deepcopy(model)
    plain.forward = lambda x: plain.head(plain.body(plain.first(x)))
    x, y = data(1, shift=2.0)
    for each in (model, plain):
        memory = remembering(each)
        for _ in range(2):
            torch.manual_seed(1)
            each.zero_grad()
            functional.cross_entropy(each(x), y).backward()
        assert memory._statistics.names == {"body.1"}
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_trial_that_fails_changes_nothing_and_is_made_again(error) -> None:
    model = whole(nn.BatchNorm1d(6), nn.Dropout(0.5))
    memory, (x, _) = remembering(model), data(1)
    own, values, draws = dict(model.named_buffers()), buffers(model), torch.get_rng_state()

    def failing(*_: object) -> None:
        raise error("in the midst")

    handle = model.net[2].register_forward_pre_hook(failing)
    for _ in range(2):
        with pytest.raises(error):
            model(x)
        assert all(module.training for module in model.modules())
        assert all(b is own[name] and torch.equal(b, values[name]) for name, b in model.named_buffers())
        assert torch.equal(torch.get_rng_state(), draws)
        assert not memory._statistics._hooks[""].evaluates
    handle.remove()
    model(x)
    assert memory._statistics._hooks[""].evaluates
    assert all(torch.equal(b, values[name]) for name, b in model.named_buffers())


class Stateful(nn.Module):
    """Has a constant, notes what passes in a cache of its caller's, and has a state that is no buffer."""

    def __init__(self, moves: bool = False) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(6, dtype=torch.float64))
        self.moves, self.calls = moves, 0

    def forward(self, x: Tensor, cache: set[Tensor] | None = None) -> Tensor:
        self.calls += 1
        if cache is not None:
            cache.add(x)
        if self.moves and self.training:
            self.table += 1.0
        return x + self.table


@pytest.mark.parametrize("moves", [False, True])
def test_a_trial_leaves_caches_and_states_alone(moves: bool) -> None:
    memory, model, _ = remembered(Stateful(moves))
    layer, x = model[1], data(1)[0] @ torch.ones(5, 6, dtype=torch.float64)
    for cached in (True, False):
        layer.calls = 0
        cache = set() if cached else None
        torch.testing.assert_close(layer(x, cache), x + (moves and cached) + layer.table)
        assert layer.calls == 1
        assert cached == bool(cache)
        assert not cache or len(cache) == 1
    assert memory._statistics._hooks["1"].evaluates == moves


def test_a_module_is_tried_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), Counter(nn.ReLU(), nn.Linear(6, 3))).double()
    x, _ = data(1)
    memory, counter = remembering(model), model[1]
    for most in (3, 1, 1):
        counter.modes.clear()
        model(x)
        assert len(counter.modes) == most
    memory.unprotect()
    model(x)
    assert counter.step == 1


def test_where_buffers_may_move_nothing_is_tried() -> None:
    memory, model, _ = remembered(Counter(nn.Linear(6, 6)), freeze_buffers=False)
    x, _ = data(1)
    model[1].modes.clear()
    before = int(model[1].step)
    with pytest.warns(UserWarning, match="freeze_buffers=True keeps them"):
        model(x)
    assert model[1].step == before + 1
    assert len(model[1].modes) == 1
    assert memory.freeze_buffers is False


def test_a_norm_in_a_norm_and_two_memories() -> None:
    model = net(Activated(Activated(nn.SiLU()), Counter(nn.Linear(6, 6))))
    memories, (x, _) = [remembering(model) for _ in range(2)], data(1, shift=2.0)
    before = buffers(model)
    for _ in range(2):
        torch.testing.assert_close(model.train()(x), model.eval()(x), rtol=0, atol=0)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert all(len(memory._statistics.names) == 3 for memory in memories)
