"""Buffers that a forward pass changes stay as they are once a task is remembered, whatever the module."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from memory_models import make, rows, train
from ogd.memory import ExampleMemory, GradientMemory, Memory


class Scaled(nn.Module):
    """Statistics by somebody else, as a buffer that each training pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean(0)
        return x / self.scale


class Functional(nn.Module):
    """Statistics of a module with children, by the functional form, whose backward pass needs the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(self.inner(x), self.mean, self.var, training=self.training)


class Activated(nn.BatchNorm1d):
    """A norm that owns what comes after it, and may draw at random there."""

    def __init__(self, *after: nn.Module) -> None:
        super().__init__(6)
        self.after = nn.Sequential(*after)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(super().forward(x))


class Outer(Scaled):
    """Statistics around a norm that has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(super().forward(x))


class Counter(nn.Module):
    """Counts the passes of training over its children, which may be a whole model, and notes all modes in each."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*children)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.modes: list[list[bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append([module.training for module in self.modules()])
        if self.training:
            self.step += 1
        return self.net(x)


class Observer(nn.Module):
    """Sees the range of what passes, in training and in evaluation, and clamps to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.most.copy_(torch.maximum(self.most, x.detach().max()))
        return x.clamp(max=float(self.most))


class Table(nn.Module):
    """A buffer that no pass changes, and dropout that must stay on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x + self.table, 0.5, self.training)


def net(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), layer, nn.ReLU(), nn.Linear(6, 3)).double()


def instance_norm() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten())


LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(6),
    "cumulative batch norm": lambda: nn.BatchNorm1d(6, momentum=None),
    "instance norm": instance_norm,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
    "old spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 6)),
    "synchronised batch norm": lambda: nn.SyncBatchNorm(6),
    "own": Scaled,
    "functional": Functional,
    "activated": lambda: Activated(nn.SiLU(inplace=True)),
    "activated at random": lambda: Activated(nn.Dropout(0.5)),
    "outer": Outer,
    "counter": lambda: Counter(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "observer": Observer,
    "fake quantize": torch.ao.quantization.FakeQuantize,
}
DROPPING = {"observer", "fake quantize"}  # evaluation mode does not keep them
ALIKE = {"batch norm", "instance norm", "synchronised batch norm", "own", "functional", "activated", "outer", "counter"}


def data(seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 5, generator=g, dtype=torch.float64) + shift
    return x, torch.randint(3, (32,), generator=g)


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers()}


def remembered(layer: nn.Module, keep: str = "gradients", **options: bool) -> tuple[Memory, nn.Module, Tensor]:
    model = net(layer)
    x, y = data(0)
    train(model, optim.SGD(model.parameters(), lr=0.05), x, y, 20)
    memory = ExampleMemory(model) if keep == "examples" else GradientMemory(model, outputs="all", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an observer says that it is held while it is being remembered
        memory.remember((x[:4], y[:4]))
    return memory, model, x[:4]


@pytest.mark.filterwarnings("ignore:the forward pass of")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", LAYERS)
def test_buffers_stay_and_the_outputs_with_them(kind: str) -> None:
    memory, model, old = remembered(LAYERS[kind]())
    optimizer = optim.SGD(model.parameters(), lr=1e-4)
    memory.protect(optimizer, every=1)
    before, outputs = buffers(model), model.eval()(old).detach()
    model.train()
    x, y = data(1, shift=2.0)
    train(model, optimizer, x, y, 50)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert model.training
    assert all(module.training for module in model.modules())
    protected = (model.eval()(old) - outputs).abs().max().item()

    model.train()
    memory.unprotect()  # and now they move, if this kind does
    train(model, optim.SGD(model.parameters(), lr=1e-4), x, y, 50)
    assert any(not torch.equal(b, before[name]) for name, b in model.named_buffers())
    if kind != "fake quantize":  # whose outputs have steps of their own
        assert (model.eval()(old) - outputs).abs().max() > 5 * protected


@pytest.mark.parametrize("kind", sorted(ALIKE))
def test_training_computes_what_evaluation_will(kind: str) -> None:
    memory, model, _ = remembered(LAYERS[kind]())
    x, _ = data(1, shift=2.0)
    for _ in range(2):  # in the first pass, where this is found out, and later
        torch.testing.assert_close(model.train()(x), model.eval()(x), rtol=0, atol=0)
    assert len(memory._statistics.names) == 1 + (kind in ("outer", "counter"))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_dropped_is_said_once(kind: str) -> None:
    memory, model, _ = remembered(LAYERS[kind]())
    memory._statistics._warned = False
    x, y = data(1, shift=2.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optim.SGD(model.parameters(), lr=0.1), x, y, 3)
    said = [w for w in caught if "dropped after each pass" in str(w.message)]
    assert len(said) == (kind in DROPPING)


def test_they_may_move_and_that_is_said_once() -> None:
    memory, model, _ = remembered(nn.BatchNorm1d(6), freeze_buffers=False)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    before = buffers(model)
    x, y = data(1, shift=2.0)
    with pytest.warns(UserWarning, match="freeze_buffers=True keeps them") as caught:
        train(model, optimizer, x, y, 5)
    assert len(caught) == 1
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    assert model[1].num_batches_tracked == before["1.num_batches_tracked"] + 5


def test_a_layer_that_took_no_part_in_a_remembered_output_gathers_its_own() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.BatchNorm1d(5), "head": nn.Linear(5, 3)}).double()
    x, y = data(0)
    memory = GradientMemory(model, logits=lambda m, x: m["head"](m["a"](x)))
    memory.remember((x, y))
    model["b"] = nn.BatchNorm1d(5).double()
    model["a"](x)
    model["b"](x)
    assert model["a"].num_batches_tracked == 0
    assert model["b"].num_batches_tracked == 1
    memory.remember((x, y), logits=lambda m, x: m["head"](m["b"](x)))
    model["b"](x)
    assert model["b"].num_batches_tracked == 1


@pytest.mark.parametrize("name", ["resnet", "lenet"])
def test_a_held_model_is_remembered_as_any_other(name: str) -> None:
    model, x, y = make(name)
    memory = GradientMemory(model)
    memory.remember((x, y))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    memory.protect(optimizer, every=1)
    train(model, optimizer, x, y, 2)
    memory.remember((x, y))
    alone = GradientMemory(copy.deepcopy(model))
    alone.remember((x, y))
    torch.testing.assert_close(rows(memory)[len(y) :], rows(alone))


def test_a_table_that_stays_is_no_reason_to_leave_training_mode() -> None:
    memory, model, _ = remembered(Table())
    x, _ = data(1)
    for _ in range(3):
        assert not torch.equal(model(x), model(x))  # dropout
    assert memory._statistics.names == {"1"}


class Late(nn.Module):
    """Leaves its buffer alone in the first passes, and changes it from then on."""

    def __init__(self, change: str, first: int) -> None:
        super().__init__()
        self.change, self.left = change, first
        self.register_buffer("scale", torch.full((6,), 2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            if self.change == "in place":
                self.scale.mul_(2)
            elif self.change == "replaced":
                self.scale = 2 * self.scale
            else:
                self.scale.resize_(12).fill_(3)
        return x / self.scale[:6]


@pytest.mark.filterwarnings("ignore:the forward pass of")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("change", ["in place", "replaced", "resized"])
def test_buffers_that_move_only_later_are_put_back(change: str, first: int, training: bool) -> None:
    model, (x, y) = net(Late(change, first=100)), data(0)
    memory = GradientMemory(model)
    memory.remember((x[:4], y[:4]))
    model.train(training)
    buffer, model[1].left = model[1].scale, first
    for _ in range(6):
        model(x)
        assert model[1].scale is buffer
        assert torch.equal(buffer, torch.full((6,), 2.0, dtype=torch.float64))
    buffer.fill_(5)  # what the user sets is what stays
    for _ in range(3):
        model(x)
        assert torch.equal(buffer, torch.full((6,), 5.0, dtype=torch.float64))
    assert memory._statistics.names == {"1"}


@pytest.mark.parametrize("training", [True, False])
def test_a_buffer_that_moves_only_later_is_told_of_once(training: bool) -> None:
    model, (x, y) = net(Late("in place", first=100)), data(0)
    memory = GradientMemory(model)
    memory.remember((x[:4], y[:4]))
    model.train(training)
    model(x)
    model[1].left = 0
    model(x)
    with pytest.warns(UserWarning, match="the forward pass of 1 changes its buffers"):
        model(x)
    model(x)


class Caching(nn.Module):
    """Keeps an input in a buffer that was None, or forgets what it had there."""

    def __init__(self, begins: bool) -> None:
        super().__init__()
        self.begins = begins
        self.register_buffer("other", torch.ones(1))
        self.register_buffer("seen", None if begins else torch.ones(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x[0].detach() if self.begins else None
        return x


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_buffer_that_comes_or_goes_has_moved(frozen: bool, begins: bool) -> None:
    model, (x, y) = net(Caching(begins)), data(0)
    memory = GradientMemory(model, freeze_buffers=frozen)
    memory.remember((x[:4], y[:4]))
    model.train()
    with pytest.warns(UserWarning, match="does not prevent" if frozen else "drift as if unprotected"):
        model(x)
    assert (model[1].seen is None) == (begins if frozen else not begins)


def test_a_small_residual_network_drifts_only_to_second_order() -> None:
    drift = {}
    for frozen in (True, False):
        model, x, y = make("resnet", n=8)
        memory = GradientMemory(model, outputs="all", freeze_buffers=frozen)
        memory.remember((x, y))
        optimizer = optim.SGD(model.parameters(), lr=1e-3)
        memory.protect(optimizer, every=1)
        before = model.eval()(x).detach()
        _, x2, y2 = make("resnet", n=8, seed=1)
        model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(model, optimizer, x2 + 1, y2, 30)
        drift[frozen] = (model.eval()(x) - before).norm().item()
    assert drift[True] < drift[False] / 50


@pytest.mark.parametrize("kind", ["batch norm", "instance norm"])
def test_statistics_that_the_user_sets_are_the_ones_that_stay(kind: str) -> None:
    memory, model, _ = remembered(LAYERS[kind]())
    memory.protect(optim.SGD(model.parameters(), lr=1e-4), every=1)
    x, _ = data(1, shift=2.0)
    means = [b for name, b in model.named_buffers() if name.endswith("running_mean")]
    assert means
    for value in (3.0, -1.0):
        model.train()(x)
        for mean in means:
            mean.fill_(value)
        for _ in range(2):
            model.train()(x)
            assert all(bool((mean == value).all()) for mean in means)


def test_a_module_in_the_place_of_another_is_held_from_the_next_task_on() -> None:
    model, (x, y) = net(nn.BatchNorm1d(6).double()), data(0)
    memory = GradientMemory(model)
    memory.remember((x[:4], y[:4]))
    model[1] = copy.deepcopy(model[1])
    memory.remember((x[4:8], y[4:8]))
    model.train()
    before = model[1].running_mean.clone()
    model(x)
    assert torch.equal(model[1].running_mean, before)
