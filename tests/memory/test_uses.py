"""How weights are used outside the layers of the table, read from the graph: each example's gradient, no loop."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from memory_models import rows
from ogd.memory import GradientMemory
from ogd.memory.gradients import gather
from ogd.memory.gradients.deltas import is_per_example
from reference import logit_gradients


class Conv1D(nn.Module):
    """As in Hugging Face's GPT-2: a Linear layer whose weight lies (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(size)


class Own(nn.Linear):
    """A subclass that inherits its forward."""


class Vision(nn.Module):
    """A class token, positions, a scale for a layer, RMSNorm, and attention with the time axis first."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.pos = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(4, 6))
        self.gamma, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(()))
        self.norm, self.layer_norm = nn.RMSNorm(6), nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.pos
        t = self.norm(x).transpose(0, 1)
        t = self.layer_norm(t - self.shift)
        x = x + self.gamma * self.attention(t, t, t, need_weights=False)[0].transpose(0, 1)
        return self.head(x[:, 0])


class Words(nn.Module):
    """An embedding with a padding index, read with the examples first or second, and a plain function's weight."""

    def __init__(self, time_first: bool) -> None:
        super().__init__()
        self.time_first = time_first
        self.embed = nn.Embedding(40, 6, padding_idx=1)
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embed(x.T).transpose(0, 1) if self.time_first else self.embed(x)
        return self.head(functional.linear(e, self.weight).tanh().mean(1))


class Offsets(nn.Module):
    """Sums, differences and products with a parameter on either side of x, plain, scaled by alpha, and broadcast."""

    FORMS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        lambda x, p: x - p,
        lambda x, p: p - x,
        lambda x, p: torch.sub(x, p, alpha=3),
        lambda x, p: torch.sub(p, x, alpha=3),
        lambda x, p: x + p,
        lambda x, p: torch.add(x, p, alpha=-2),
        lambda x, p: torch.add(p, x, alpha=-2),
        lambda x, p: x * p,
        lambda x, p: p * x,
    )

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.offsets = nn.ParameterList([torch.randn(shape) for _ in self.FORMS])
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for form, p in zip(self.FORMS, self.offsets, strict=True):
            x = form(x, p).tanh()
        return self.head(x.mean(1))


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(4))


def normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape, dtype=torch.float64)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "Conv1D": (lambda: nn.Sequential(Conv1D(9, 6), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4)), normal(3, 6)),
    "subclass": (lambda: nn.Sequential(Own(6, 9), nn.Tanh(), Own(9, 4, bias=False)), normal(6)),
    "vision": (Vision, normal(3, 6)),
    "offsets": (lambda: Offsets(6), normal(3, 6)),
    "offsets by place": (lambda: Offsets(3, 1), normal(3, 6)),
    "one offset": (Offsets, normal(3, 6)),
    "words": (lambda: Words(False), lambda n: torch.randint(40, (n, 5))),
    "words, time first": (lambda: Words(True), lambda n: torch.randint(40, (n, 5))),
    "grouped": (lambda: images(nn.Conv2d(4, 6, 3, groups=2, padding=1, stride=2)), normal(4, 6, 5)),
    "depthwise": (lambda: images(nn.Conv1d(4, 4, 3, groups=4, dilation=2)), normal(4, 9)),
    "transposed": (lambda: images(nn.ConvTranspose2d(4, 3, 3, 2, 1, 1)), normal(4, 3, 2)),
    "transposed, 1d": (lambda: images(nn.ConvTranspose1d(4, 3, 3, 2, dilation=2)), normal(4, 5)),
    "group norm": (lambda: images(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)), normal(2, 4, 4)),
}


def made(case: str, n: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    build, inputs = CASES[case]
    model, x = build().double(), inputs(n)
    model(x[:1])  # lazy layers become real
    return model, x, torch.randint(4, (n,))


@pytest.mark.parametrize("chunk_size", [None, 4, 1])
@pytest.mark.parametrize("outputs", ["true", "all"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_the_reference_without_a_pass_per_example(
    case: str, outputs: str, chunk_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = made(case)
    G = logit_gradients(model, x, y, outputs=outputs)
    asked: list[str] = []
    original = gather.per_example
    monkeypatch.setattr(gather, "per_example", lambda c, p, *a: asked.extend(p) or original(c, p, *a))
    memory = GradientMemory(model, outputs=outputs, chunk_size=chunk_size)
    memory.remember((x, y))
    torch.testing.assert_close(rows(memory), G, rtol=1e-10, atol=1e-12)
    assert not asked


def test_only_the_rows_that_were_read_are_stored_of_an_embedding() -> None:
    model, x, y = made("words")
    memory = GradientMemory(model)
    memory.remember((x, y))
    (piece,) = [piece for piece in memory.store.pieces if piece.names == ("embed.weight",)]
    assert type(piece.block).__name__ == "Sparse"
    assert piece.block.nbytes == len(x) * 5 * (6 * 8 + 4)  # 5 words: their numbers and the gradients there


@pytest.mark.parametrize("case", ["subclass", "words"])
def test_what_is_stored_does_not_change_with_the_examples(case: str) -> None:
    model, x, y = made(case)
    x = x if x.is_floating_point() else x.int()
    G = logit_gradients(model, x, y)
    memory = GradientMemory(model)
    memory.remember((x, y))
    x.zero_()
    torch.testing.assert_close(rows(memory), G, rtol=1e-10, atol=1e-12)


def test_an_embedding_that_divides_by_frequency_is_differentiated_example_by_example() -> None:
    model, x, y = made("words")
    model.embed.scale_grad_by_freq = True
    memory = GradientMemory(model)
    memory.remember((x, y))
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("alpha", [1, 3])
def test_a_difference_the_other_way_round_has_its_sign(alpha: int) -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.left = (nn.Parameter(torch.randn(6).double()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.rsub(x, self.one, alpha=alpha).tanh()  # one − alpha x
            x = torch.rsub(self.other, x, alpha=alpha).tanh()  # x − alpha other
            return x * (1 - self.left)

    torch.manual_seed(0)
    model, x, y = Reversed(), torch.randn(5, 6).double(), torch.arange(5)
    memory = GradientMemory(model)
    memory.remember((x, y))
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("units", "expected"), [(0, True), (-3, True), (3, True), (8, False), (-8, False)])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_few_units_in_the_last_place_are_rounding_and_more_are_another_example(
    size: float, units: int, expected: bool
) -> None:
    v = 2.0 ** torch.tensor([0, 3, 60], dtype=torch.float64)
    d = torch.full((3, 2), size, dtype=torch.float64)
    for i in range(3):
        weighted = v[:, None] * d
        weighted[i, 1] *= 1 + units * torch.finfo(torch.float64).eps
        assert is_per_example(d, weighted, v) is expected
