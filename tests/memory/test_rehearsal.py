"""The gradient that rehearsal adds is that of a slow loop over the drawn examples, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from memory_models import LeNet, Transformer, mlp
from ogd import seeds
from ogd.defaults import REHEARSAL_ALPHA as ALPHA
from ogd.memory import ExampleMemory
from reference import pseudo_huber

Task = tuple[Any, Any, dict[str, Any]]  # x, y and the options of remember
BATCH, EVERY = 7, 3


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 2)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](self.body(x).tanh())


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.a(a) * self.b(b)).tanh()


class Words(nn.Module):
    """The logits of every token, or of a text."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(9, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 9)
        self.each = each

    def forward(self, input_ids: Tensor) -> Any:
        z = self.head(self.body(self.embed(input_ids))[0])
        return {"logits": z if self.each else z[:, -1]}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape).half().double()  # kept without loss


def classes(n: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high, (n,))


def one_head() -> tuple[nn.Module, list[Task]]:
    return mlp(), [(normal(9, 12), classes(9, 0, 4), {}) for _ in range(2)]


def own_classes() -> tuple[nn.Module, list[Task]]:
    tasks = [(normal(6, 12), classes(6, low, low + 2), {"classes": [low, low + 1]}) for low in (0, 2)]
    return mlp(), [*tasks, (normal(6, 12), classes(6, 0, 4), {})]


def own_heads() -> tuple[nn.Module, list[Task]]:
    def logits(head: int) -> Callable[..., Tensor]:
        return lambda model, x: model(x, head)

    return Heads(), [(normal(5, 5), classes(5, 0, 3 - i), {"logits": logits(i)}) for i in range(2)]


def pairs() -> tuple[nn.Module, list[Task]]:
    return Two(), [((normal(9, 4), normal(9, 2)), classes(9, 0, 3), {})]


def dicts() -> tuple[nn.Module, list[Task]]:
    return Two(), [({"a": normal(9, 4), "b": normal(9, 2)}, classes(9, 0, 3), {})]


def tokens() -> tuple[nn.Module, list[Task]]:
    return Transformer(), [(torch.randint(7, (9, 5)), classes(9, 0, 4), {})]


def texts() -> tuple[nn.Module, list[Task]]:
    return Words(False), [({"input_ids": torch.randint(9, (4, T))}, classes(4, 0, 9), {}) for T in (3, 5, 3, 8)]


def language() -> tuple[nn.Module, list[Task]]:
    y = torch.randint(9, (6, 5))
    y[torch.rand(6, 5) < 0.4] = -100
    y[0] = -100  # nothing to say of this one
    return Words(True), [({"input_ids": torch.randint(9, (6, 5))}, y, {})]


def images() -> tuple[nn.Module, list[Task]]:
    return LeNet(), [((torch.randint(256, (9, 1, 7, 7)) / 255).double(), classes(9, 0, 4), {})]


def regression() -> tuple[nn.Module, list[Task]]:
    return mlp(), [(normal(9, 12), normal(9, 4), {})]


def counts() -> tuple[nn.Module, list[Task]]:
    return nn.Sequential(nn.Linear(12, 1), nn.Flatten(0)), [(normal(9, 12), classes(9, 0, 50), {})]


def unlabelled() -> tuple[nn.Module, list[Task]]:
    return mlp(), [(normal(9, 12), None, {}), (normal(4, 12), classes(4, 0, 4), {})]


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, list[Task]]], dict[str, Any]]] = {
    "one head": (one_head, {}),
    "classes": (own_classes, {"alpha": 0.3}),
    "heads": (own_heads, {}),
    "tuple": (pairs, {}),
    "dict": (dicts, {}),
    "tokens": (tokens, {"alpha": 2}),
    "texts": (texts, {}),
    "language": (language, {}),
    "images": (images, {}),
    "regression": (regression, {}),
    "counts": (counts, {}),
    "unlabelled": (unlabelled, {}),
    "labels=False": (one_head, {"labels": False}),
    "alpha=0": (one_head, {"alpha": 0}),
}


def one_by_one(model: nn.Module, tasks: list[Task]) -> list[tuple[Any, Any, Tensor, dict[str, Any]]]:
    """Every example with its outputs and its task's options, those of one form together."""
    forms: dict[Any, list[Any]] = {}
    for x, y, options in tasks:
        for i in range(len(pytree.tree_leaves(x)[0])):
            xi = pytree.tree_map(lambda t, i=i: t[i : i + 1], x)
            yi = None if y is None else y[i]
            form = (str([t if t is None else t.shape for t in pytree.tree_leaves((xi, yi))]), id(options.get("logits")))
            forms.setdefault(form, []).append((xi, yi, scores(model, xi, options).detach(), options))
    return [example for form in forms.values() for example in form]


def scores(model: nn.Module, x: Any, options: dict[str, Any]) -> Tensor:
    if "logits" in options:
        return options["logits"](model, x)[0]
    z = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
    return (z["logits"] if isinstance(z, dict) else z)[0]


def slow_loss(z: Tensor, y: Any, before: Tensor, classes: Any, alpha: float, labels: bool) -> Tensor:
    own = list(range(z.shape[-1])) if classes is None and z.ndim else classes
    square = (z[..., own] - before[..., own]) ** 2 if z.ndim else (z - before) ** 2
    if z.ndim == 2:  # several positions, of which those with a label count
        square = square[y != -100]
    if not len(square.flatten()):
        return 0 * z.sum()
    if y is None or y.is_floating_point() or z.ndim == 0:
        return alpha * square.mean()
    loss = alpha * pseudo_huber(square.mean(-1)).mean()
    if not labels:
        return loss
    if y.ndim == 0:
        return loss - z[..., own].log_softmax(-1)[own.index(int(y))]
    each = [-z[t].log_softmax(-1)[y[t]] for t in range(len(y)) if y[t] != -100]
    return loss + torch.stack(each).mean() if each else loss


@pytest.mark.parametrize("name", CASES)
def test_the_added_gradient_is_that_of_a_slow_loop(name: str) -> None:
    torch.manual_seed(0)
    make, options = CASES[name]
    model, tasks = make()
    model.double().eval()
    examples = one_by_one(model, tasks)
    model.train()
    memory = ExampleMemory(model, per_task=None)
    assert isinstance(memory, ExampleMemory)
    for x, y, own in tasks:
        memory.remember(DataLoader([(x, y)], batch_size=None, collate_fn=lambda batch: batch), **own)
    optimizer = optim.SGD(model.parameters(), lr=0)
    rehearsal = memory.protect(optimizer, every=EVERY, batch_size=BATCH, bound=None, **options)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
            p.grad = torch.randn_like(p)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.eval()
    for draw in range(2):
        drawn = torch.randperm(len(examples), generator=seeds.generator(memory.seed, "rehearsal", draw))[:BATCH]
        losses = []
        for i in drawn.tolist():
            x, y, z, own = examples[i]
            alpha, labels = options.get("alpha", ALPHA), options.get("labels", True)
            losses.append(slow_loss(scores(model, x, own), y, z, own.get("classes"), alpha, labels))
        loss = torch.stack(losses).mean()
        wanted = torch.autograd.grad(EVERY * loss, list(model.parameters()), allow_unused=True)
        for step in range(EVERY):
            for p, g in zip(model.parameters(), before, strict=True):
                assert step == 0 or torch.equal(p.grad, g)
                p.grad = g.clone()
            optimizer.step()
        for p, g, w in zip(model.parameters(), before, wanted, strict=True):
            torch.testing.assert_close(p.grad, g if w is None else g + w, rtol=1e-9, atol=1e-9)
        assert rehearsal.loss == pytest.approx(float(loss.detach()), rel=1e-9)
    assert any(w is not None and w.norm() > 1e-3 for w in wanted)


@pytest.mark.parametrize("shift", [True, False])
def test_labels_of_tokens_are_shifted_if_asked(shift: bool) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(9, (6, 5))
    y = tokens.where(tokens != 3, -100)
    with pytest.raises(
        ValueError, match=r"labels mostly repeat the tokens .* ExampleMemory\(model, shift_labels=True\)"
    ):
        ExampleMemory(Words(True)).remember({"input_ids": tokens, "labels": y})
    losses = []
    for labels, options in (
        (y, {"shift_labels": shift}),
        (torch.cat([y[:, 1:], torch.full((6, 1), -100)], 1) if shift else y, {"shift_labels": False}),
    ):
        torch.manual_seed(0)
        memory = ExampleMemory(Words(True), **options)
        memory.remember({"input_ids": tokens, "labels": labels})
        losses.append(memory.remembered_loss(6))
    torch.testing.assert_close(*losses, rtol=0, atol=0)


@pytest.mark.parametrize("classes", [None, [0, 1, 2]])
def test_a_head_may_grow(classes: list[int] | None) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), normal(5, 4), classes_of(5)
    memory = ExampleMemory(model)
    assert isinstance(memory, ExampleMemory)
    memory.remember((x, y), classes=classes)
    z = model(x).detach()
    small, large = model[2], nn.Linear(6, 5).double()
    with torch.no_grad():
        large.weight[:3], large.bias[:3] = small.weight, small.bias
    model[2] = large
    assert max(memory.stats().drift) < 1e-12
    now = model(x)
    entropy = functional.cross_entropy(now if classes is None else now[:, :3], y)
    torch.testing.assert_close(
        memory.remembered_loss(5, alpha=2), entropy + 2 * pseudo_huber((now[:, :3] - z).square().mean(1)).mean()
    )
    memory.remember((x, y + 2), classes=None if classes is None else [2, 3, 4])
    found = memory.remembered_loss(10)
    assert found is not None
    assert found.isfinite()
    assert max(memory.stats().drift) < 1e-12
    model[2] = nn.Linear(6, 2).double()
    with pytest.raises(ValueError, match=r"outputs of shape \(\d, 2\) where \(\d, 3\) were remembered"):
        memory.remembered_loss(10)


def classes_of(n: int) -> Tensor:
    return torch.arange(n) % 3


def test_only_the_wanted_parameters_rehearse() -> None:
    torch.manual_seed(0)
    model = mlp().double()
    memory = ExampleMemory(model, params=["0"])
    memory.remember((normal(5, 12), classes(5, 0, 4)))
    optimizer = optim.SGD(model.parameters(), lr=0)
    memory.protect(optimizer, every=1)
    optimizer.step()
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["0.weight", "0.bias"]


def test_without_other_words_16_examples_are_rehearsed_every_second_step() -> None:
    model, sizes = nn.Linear(3, 2), list[int]()
    memory = ExampleMemory(model)
    memory.remember((torch.randn(90, 3), torch.randint(2, (90,))))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer)
    model.register_forward_hook(lambda module, args, out: sizes.append(len(out)))
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(7, 3)).sum().backward()
        optimizer.step()
    assert sorted(sizes) == [7] * 4 + [16] * 2


def test_what_a_step_is_given_beside_its_closure_reaches_it() -> None:
    class Own(optim.SGD):
        def step(self, closure: Callable[[], Tensor], *more: object) -> Tensor:  # type: ignore[override]
            seen.append(more)
            return super().step(closure)

    seen, model = list[Any](), nn.Linear(3, 2)
    memory = ExampleMemory(model)
    memory.remember((torch.randn(9, 3), torch.randint(2, (9,))))
    optimizer = Own(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)

    def closure() -> Tensor:
        loss = model(torch.ones(1, 3)).sum()
        loss.backward()
        return loss

    optimizer.step(closure, "a", "b")
    optimizer.step(closure)
    assert seen == [("a", "b"), ()]
