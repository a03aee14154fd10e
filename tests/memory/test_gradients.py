"""Per-example gradients, whatever way they reach a parameter, equal a loop of autograd.grad."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from memory_models import FICKLE, MODELS, make, rows
from ogd.memory import ExampleMemory, Factored, GradientMemory, Memory, register_layer
from ogd.memory.gradients import per_example
from ogd.memory.gradients.layers import _RULES
from ogd.memory.loading import KINDS
from ogd.memory.model.buffer_hooks import Hook
from ogd.memory.model.eval_mode import eval_mode
from reference import logit_gradients


def kinds(memory: Memory) -> dict[str, str]:
    return {name: type(piece.block).__name__ for piece in memory.store.pieces for name in piece.names}


@pytest.mark.parametrize("chunk_size", [None, 4, 1])
@pytest.mark.parametrize("outputs", ["true", "mean", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_the_reference(name: str, outputs: str, chunk_size: int | None) -> None:
    model, x, y = make(name)
    memory = GradientMemory(model, outputs=outputs, chunk_size=chunk_size)
    memory.remember((x, y))
    G = logit_gradients(model, x, y, outputs=outputs)
    assert len(memory) == len(G)
    torch.testing.assert_close(rows(memory), G, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_only_recurrence_and_routing_need_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looped = []
    original = per_example._loop
    monkeypatch.setattr(per_example, "_loop", lambda *args: looped.append(1) or original(*args))
    model, x, y = make(name)
    GradientMemory(model).remember((x, y))
    assert bool(looped) == (name in ("lstm", "routed"))


def test_the_smallest_form_is_stored() -> None:
    found = {}
    for name in MODELS:
        model, x, y = make(name)
        memory = GradientMemory(model)
        memory.remember((x, y))
        found[name] = kinds(memory)
        for piece in memory.store.pieces:
            numbers = sum(dict(model.named_parameters())[n].numel() for n in piece.names)
            assert piece.block.nbytes <= 8 * numbers * len(memory)
    assert set(found["mlp"].values()) == {"Factored"}
    assert (found["sequences"]["0.weight"], found["sequences"]["2.weight"]) == ("Factored", "Dense")
    assert found["wave"]["conv.weight"] == "Convolved"
    assert found["lenet"]["body.0.weight"] == "Dense"
    assert found["transformer"]["blocks.layers.0.self_attn.out_proj.weight"] == "Dense"
    assert found["transformer"]["blocks.layers.0.linear1.weight"] == "Factored"  # 5 · (8 + 12) < 8 · 12 + 12
    assert "unused.weight" not in found["odd"]
    assert {n for n, kind in found["odd"].items() if kind == "Factored"} == {
        *("shifted.weight", "shifted.bias", "dropped.weight", "head.weight", "head.bias")
    }


@pytest.mark.parametrize("keep", ["gradients", "examples"])
@pytest.mark.parametrize("name", MODELS | FICKLE)
def test_the_model_is_left_as_it_was(name: str, keep: str) -> None:
    model, x, y = make(name, dtype=torch.float32)
    model.train()
    if name == "resnet":
        model.norm.eval()  # one module in another mode than the model
    functional.cross_entropy(model(x), y).backward()
    before = copy.deepcopy(model.state_dict())
    held = [(vars(m), dict(vars(m))) for m in model.modules()]
    members = [(d, dict(d)) for m in model.modules() for d in (m._parameters, m._buffers, m._modules)]
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    hooks = [_hooks(m) for m in model.modules()]
    random = torch.get_rng_state()
    memory = KINDS[keep](model)
    memory.remember(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), shuffle=True))
    memory.explain((x, y))
    memory.stats()
    assert torch.equal(torch.get_rng_state(), random)
    for now, then in held + members:
        assert list(now) == list(then)
        assert all(now[key] is value for key, value in then.items())
    assert len(getattr(model, "states", [0])) == 1  # a list of what one pass has appended
    assert modes == [m.training for m in model.modules()]
    assert hooks == [_hooks(m) for m in model.modules()]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for p, g in zip(model.parameters(), grads, strict=True):
        assert (p.grad is None) == (g is None)
        assert g is None or torch.equal(p.grad, g)


def _hooks(module: nn.Module) -> int:
    """But for those that keep statistics."""
    return sum(not isinstance(hook, Hook) for hook in module._forward_hooks.values())


class Restless(nn.Module):
    """Counts its calls in buffers and merges two weights in evaluation mode, as adapters do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.adapter = nn.Linear(12, 4), nn.Parameter(torch.randn(4, 12))
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("m", torch.zeros(()))
        self.register_buffer("late", None)
        self.merged = False

    def train(self, mode: bool = True) -> nn.Module:
        if self.merged == mode:
            self.layer.weight.data += self.adapter.data if not mode else -self.adapter.data
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.m = self.m + 1
        self.late = self.n.clone()
        self.register_buffer("new", self.n.clone())
        return self.layer(x if self.merged else x + 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_scripted_modules_and_their_parents_are_in_evaluation_mode_inside() -> None:
    scripted = torch.jit.script(nn.Dropout(0.5))
    for model in (nn.Sequential(scripted, nn.Dropout(0.5)), nn.Sequential(nn.Dropout(0.5))):
        model.train()
        with eval_mode(model):
            assert torch.equal(model(torch.ones(9)), torch.ones(9))
            assert not any(module.training for module in model.modules())
        assert all(module.training for module in model.modules())
        assert not torch.equal(model(torch.ones(99)), torch.ones(99))


@pytest.mark.parametrize("training", [(True, True), (True, False), (False, True), (False, False)])
def test_buffers_and_what_train_does_are_as_before(training: tuple[bool, bool]) -> None:
    _, x, y = make("mlp")
    inner = Restless().double()
    model = nn.Sequential(inner).train(training[0])
    inner.train(training[1])
    n, weight = inner.n, inner.layer.weight.detach().clone()
    GradientMemory(model).remember((x, y))
    assert (model.training, inner.training) == training
    assert inner.merged != training[1]
    torch.testing.assert_close(inner.layer.weight, weight)
    assert inner.n is n
    assert (float(inner.n), float(inner.m), inner.late) == (0, 0, None)
    assert "new" not in inner._buffers


def test_classes_and_logits_choose_a_head() -> None:
    model, x, y = make("mlp")
    y = y % 2 + 1
    for outputs in ("true", "mean", "all"):
        memory = GradientMemory(model, outputs=outputs)
        memory.remember((x, y), classes=[1, 2])
        torch.testing.assert_close(rows(memory), logit_gradients(model, x, y, outputs=outputs, classes=[1, 2]))
        head = GradientMemory(model, outputs=outputs, logits=lambda m, x: m(x)[:, 1:3])
        head.remember((x, y - 1))
        torch.testing.assert_close(rows(head), rows(memory))


def test_outputs_may_be_a_function_of_anything() -> None:
    model, x, y = make("mlp")

    def regression(f: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return f[:, 0] ** 2

    memory = GradientMemory(model, outputs=regression)
    memory.remember((x, None))
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y, outputs=regression))


def test_inputs_may_be_nested() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, logits=lambda m, batch: m(batch["a"] + batch["b"][0]))
    memory.remember(({"a": x, "b": (x,)}, y))
    torch.testing.assert_close(rows(memory), logit_gradients(model, 2 * x, y))


def test_no_grad_inference_mode_and_autocast_around_it_change_nothing() -> None:
    model, x, y = make("mlp", dtype=torch.float32)
    plain = GradientMemory(model)
    plain.remember((x, y))
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        memory = GradientMemory(model)
        with context:
            memory.remember((x, y))
        assert torch.equal(rows(memory), rows(plain))


class Transposed(nn.Module):
    """A layer whose weight lies (in, out), as in some transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 20))
        self.bias = nn.Parameter(torch.randn(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bi,io->bo", x, self.weight) + self.bias  # how the graph shows it, nobody knows


def test_a_layer_of_your_own_can_be_registered() -> None:
    _, x, y = make("mlp")
    model = nn.Sequential(Transposed(), nn.Tanh(), nn.Linear(20, 4)).double()
    dense = GradientMemory(model)
    dense.remember((x, y))
    register_layer(Transposed, lambda layer, x, d: (x.unsqueeze(1), d.unsqueeze(1)), out_first=False)
    try:
        memory = GradientMemory(model)
        memory.remember((x, y))
        assert isinstance(memory.store.pieces[0].block, Factored)
        assert kinds(dense)["0.weight"] == "Dense"
        torch.testing.assert_close(rows(memory), rows(dense))
        torch.testing.assert_close(memory.store.gram({"0.weight"}), dense.store.gram({"0.weight"}))
        u = {n: torch.randn_like(p) for n, p in model.named_parameters()}
        for one, other in zip(memory.project(u).values(), dense.project(u).values(), strict=True):
            torch.testing.assert_close(one, other)
    finally:
        del _RULES[Transposed]


def test_sparse_gradients_are_read_like_others() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 4)).double()
    x, y = torch.randint(5, (6, 2)), torch.randint(4, (6,))
    memory = GradientMemory(model)
    memory.remember((x, y))
    model[0].sparse = False
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y))


def test_complex_parameters_are_refused() -> None:
    model = nn.Linear(3, 4, dtype=torch.complex64)
    with pytest.raises(ValueError, match="weight is complex"):
        GradientMemory(model).remember((torch.randn(5, 3), torch.zeros(5, dtype=torch.long)))
    for memory in (GradientMemory(model), ExampleMemory(model)):  # before a first task is trained
        with pytest.raises(ValueError, match="weight is complex"):
            memory.protect(torch.optim.SGD(model.parameters(), lr=0.1))


class Overwriting(nn.Linear):
    """Its input changes afterwards, which autograd refuses in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        y = functional.linear(z, self.weight)
        z.zero_()
        return y


def test_an_input_that_changes_after_its_use_is_an_error_as_in_training() -> None:
    model = Overwriting(3, 4)
    register_layer(Overwriting, lambda layer, x, d: (x.unsqueeze(1), d.unsqueeze(1)))
    try:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            GradientMemory(model).remember((torch.randn(5, 3), torch.zeros(5, dtype=torch.long)))
    finally:
        del _RULES[Overwriting]


def test_batch_statistics_in_eval_mode_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False))
    with pytest.raises(ValueError, match=r"^1 normalises by the batch"):
        GradientMemory(model).remember((torch.randn(5, 3), torch.zeros(5, dtype=torch.long)))


@pytest.mark.parametrize("outputs", ["true", "all"])
@pytest.mark.parametrize("name", FICKLE)
def test_models_that_their_own_forward_pass_changes(name: str, outputs: str) -> None:
    model, x, y = make(name, dtype=torch.float32)
    memory = GradientMemory(model, outputs=outputs)
    memory.remember((x, y))
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y, outputs=outputs), rtol=0.02, atol=0.02)
    assert {t.dtype for piece in memory.store.pieces for t in piece.block.tensors().values()} <= {
        torch.float32,
        torch.int32,
    }


class TimeFirst(nn.Module):
    """Sequences first, (T, B, in), and a gate that makes some examples' gradients tiny."""

    def __init__(self, hidden: nn.Module) -> None:
        super().__init__()
        self.hidden, self.head = hidden, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x.transpose(0, 1)).tanh()[-1] * x[:, -1, :1])


@pytest.mark.parametrize("gate", [1e-1, 1e-2, 1e-4, 1e-7, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["linear", "sum", "product"])
def test_small_gradients_go_to_their_own_examples(kind: str, dtype: torch.dtype, gate: float) -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.weight if kind == "sum" else x * self.weight

    for B, T in ((4, 4), (9, 9), (8, 4), (8, 2)):
        torch.manual_seed(B)
        model = TimeFirst(nn.Linear(8, 8) if kind == "linear" else Offset()).to(dtype)
        x = torch.randn(B, T, 8)
        x[:-1, -1, 0] = gate * (1 + torch.rand(B - 1))
        x, y = x.to(dtype), torch.randint(3, (B,))
        memory = GradientMemory(model, per_task=None)
        memory.remember((x, y))
        hidden = sum(p.numel() for p in model.hidden.parameters())
        exact = logit_gradients(copy.deepcopy(model).double(), x.double(), y)[:, :hidden]
        G = rows(memory)[:, :hidden]
        slack = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.1}[dtype]
        tiny = 1e-5 if dtype == torch.float16 else 0.0  # below it float16 has few digits
        assert ((G - exact).norm(dim=1) <= slack * exact.norm(dim=1) + tiny).all()


@pytest.mark.parametrize("chunk_size", [None, 1, 3])
@pytest.mark.parametrize("params", [["experts.0"], ["experts"], None])
def test_a_chunk_may_use_none_of_the_parameters(params: list[str] | None, chunk_size: int | None) -> None:
    model, x, y = make("routed", n=9)
    x[:, 0].abs_()[3:6].neg_()  # the middle ones go to the second expert
    memory = GradientMemory(model, params=params, chunk_size=chunk_size)
    memory.remember((x, y))
    assert memory.task_sizes == (9,)
    chosen = [p if name in memory._parameters else torch.zeros_like(p) for name, p in model.named_parameters()]
    G = logit_gradients(model, x, y) * torch.cat([(p != 0).flatten() for p in chosen])
    torch.testing.assert_close(rows(memory), G)
    again = GradientMemory(model, params=params)
    again.load_state_dict(memory.state_dict())
    torch.testing.assert_close(rows(again), G)


def test_no_chunk_uses_the_parameters() -> None:
    model, x, y = make("routed", n=4)
    with pytest.raises(ValueError, match="do not depend on any protected parameter"):
        GradientMemory(model, params=["experts.0"], chunk_size=1).remember((-x.abs(), y))


@pytest.mark.parametrize("keep", ["gradients", "examples"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_scripted_and_traced_models_are_refused(keep: str) -> None:
    model, x, y = make("mlp", dtype=torch.float32)
    for scripted in (torch.jit.script(model), torch.jit.trace(model, x), nn.Sequential(torch.jit.script(model))):
        with pytest.raises(ValueError, match="is a ScriptModule, whose inner calls no hook can see"):
            KINDS[keep](scripted).remember((x, y))
