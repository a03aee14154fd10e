"""Random models, data and lives of a memory: what `test_fuzz` compares with a dense reference, example by example.

A model is a few layers for one kind of features (vectors, sequences, signals, images, tokens), drawn from the tables
below, then a pool to vectors, a few more layers, and a head. A number makes it: `drawn(7)` is the same everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)  # these models are so small that a second thread costs more than it brings

Shape = tuple[int, ...]  # of one example's features
Make = Callable[[Random, Shape], nn.Module]


class Apply(nn.Module):
    """A function without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Combined(nn.Module):
    """x and a layer of x, put together: a residual connection or a gate."""

    def __init__(self, layer: nn.Module, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(x, self.layer(x))


class Learned(nn.Module):
    """x and a parameter of some shape, put together."""

    FORMS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        lambda x, p: x + p,
        lambda x, p: x - p,
        lambda x, p: p - x,
        lambda x, p: torch.sub(x, p, alpha=3),
        lambda x, p: torch.rsub(x, p, alpha=2),
        lambda x, p: x * p,
        lambda x, p: p * x.tanh(),
        lambda x, p: x * (1 - p),
        lambda x, p: x / (2 + p.square()),
        lambda x, p: torch.addcmul(x, x.tanh(), p, value=-1),
    )

    def __init__(self, form: int, shape: Shape) -> None:
        super().__init__()
        self.form, self.p = self.FORMS[form], nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.p)


class Turned(nn.Module):
    """A matrix that lies (in, out), used by an operation that is no layer."""

    FORMS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        lambda x, w: x @ w,
        lambda x, w: torch.einsum("...i,io->...o", x, w),
        lambda x, w: nn.functional.linear(x, w.mT),
        lambda x, w: x.matmul(w.expand(2, -1, -1).sum(0)),
    )

    def __init__(self, form: int, into: int, out: int) -> None:
        super().__init__()
        self.form, self.weight = self.FORMS[form], nn.Parameter(torch.randn(into, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.weight)


class Twice(nn.Module):
    """A layer that is called twice; `shared`: under two names."""

    def __init__(self, layer: nn.Module, shared: bool = False) -> None:
        super().__init__()
        self.layer = layer
        if shared:
            self.again = layer

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, "again", self.layer)(self.layer(x).tanh())


class Tied(nn.Module):
    """Two layers with one weight, the second of them its transpose if they are an encoder and a decoder."""

    def __init__(self, one: nn.Linear, other: nn.Linear | None) -> None:
        super().__init__()
        self.one, self.other = one, other
        if other is not None:
            other.weight = one.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).tanh()
        return h @ self.one.weight if self.other is None else self.other(h)


class LowRank(nn.Module):
    """A frozen layer and two small matrices beside it, as LoRA has them."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.base = nn.Linear(into, out).requires_grad_(False)
        self.down, self.up = nn.Linear(into, 2, bias=False), nn.Linear(2, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * self.up(self.down(x))


class Experts(nn.Module):
    """Each example goes to the expert that its largest feature names."""

    def __init__(self, into: int, out: int, in_place: bool) -> None:
        super().__init__()
        self.experts, self.in_place = nn.ModuleList([nn.Linear(into, out) for _ in range(2)]), in_place

    def forward(self, x: Tensor) -> Tensor:
        chosen = x.detach().argmax(-1) % 2
        result = x.new_zeros(len(x), self.experts[0].out_features)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().flatten()
            if not len(rows):
                continue
            if self.in_place:
                result[rows] = expert(x[rows])
            else:
                result = result.index_copy(0, rows, expert(x[rows]))
        return result


class Mixture(nn.Module):
    """Experts that are weighed by a gate."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList([nn.Linear(into, out) for _ in range(2)]), nn.Linear(into, 2)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.stack([expert(x) for expert in self.experts], -1)
        return (each * self.gate(x).softmax(-1).unsqueeze(-2)).sum(-1)


class Bilinear(nn.Bilinear):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x.tanh())


class Recurrent(nn.Module):
    """The outputs of a recurrent layer; `time_first`: it sees (T, B, ·)."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class TimeFirst(nn.Module):
    """A layer that sees (T, B, ·) in place of (B, T, ·)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Rearranged(nn.Module):
    """A layer that sees the examples in another arrangement: what it sees, and how its answer is put back."""

    FORMS: tuple[tuple[Callable[[Tensor], Tensor], Callable[[Tensor, int], Tensor]], ...] = (
        (lambda x: x.flip(0), lambda z, n: z.flip(0)),
        (lambda x: x.roll(1, 0), lambda z, n: z.roll(-1, 0)),
        (lambda x: torch.cat([x, 2 * x]), lambda z, n: z[:n] * z[n:].tanh()),
        (lambda x: torch.stack([x, x.sin()], 1).flatten(0, 1), lambda z, n: z[::2] - z[1::2]),
        (lambda x: x.flatten(0, -2), lambda z, n: z.unflatten(0, (n, -1)).squeeze(1)),
        (lambda x: x.unsqueeze(0), lambda z, n: z.squeeze(0)),
        (lambda x: x.expand(3, *x.shape), lambda z, n: z.sum(0)),
    )

    def __init__(self, form: int, layer: nn.Module) -> None:
        super().__init__()
        (self.there, self.back), self.layer = self.FORMS[form], layer

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.layer(self.there(x)), len(x))


class Cells(nn.Module):
    """A cell that is called once for every time."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state, found = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            found.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(found, 1)


class Checkpointed(nn.Module):
    """A layer that is computed once more in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=False)


class Token(nn.Module):
    """A learned token before a sequence, and learned positions."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(length + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), 1, -1), x], 1) + self.positions


class Words(nn.Embedding):
    """An embedding, with positions of its own looked up in a second table."""

    def __init__(self, words: int, width: int, length: int, **options: Any) -> None:
        super().__init__(words, width, **options)
        self.places = nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.places(torch.arange(x.shape[1]))


class TiedHead(nn.Module):
    """Logits by the table of an embedding."""

    def __init__(self, width: int, table: nn.Embedding) -> None:
        super().__init__()
        self.proj, self.table = nn.Linear(width, table.embedding_dim), table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x) @ self.table.mT


def _width(rng: Random) -> int:
    return rng.randint(2, 6)


def _linear(rng: Random, shape: Shape, out: int | None = None) -> nn.Linear:
    return nn.Linear(shape[-1], out or _width(rng), bias=rng.random() < 0.8)


def _square(rng: Random, shape: Shape) -> nn.Linear:
    return _linear(rng, shape, shape[-1])


def _two_layers(rng: Random, shape: Shape) -> nn.Module:
    width = _width(rng)
    return nn.Sequential(_linear(rng, shape, width), nn.Tanh(), nn.Linear(width, shape[-1]))


def _learned(rng: Random, shape: Shape) -> nn.Module:
    return Learned(rng.randrange(len(Learned.FORMS)), rng.choice([(), shape[-1:], shape, (1, *shape)]))


def _hooked(rng: Random, shape: Shape) -> nn.Module:
    """A layer whose output is replaced by a hook."""
    layer = _linear(rng, shape)
    layer.register_forward_hook(lambda module, args, out: 2 * out.sin())
    return layer


def _ignored(rng: Random, shape: Shape) -> nn.Module:
    """A layer that is called, but whose result plays no part, and whose weight is used elsewhere."""
    return Combined(_square(rng, shape), lambda x, z: x + 0 * z.detach())


def _learned_by_time(rng: Random, shape: Shape) -> nn.Module:
    """An offset of a sequence that lies (T, B, ·)."""
    return Learned(rng.randrange(len(Learned.FORMS)), rng.choice([(), shape[-1:], (shape[0], 1, shape[1])]))


def _groups(rng: Random, channels: int) -> int:
    return rng.choice([g for g in range(1, channels + 1) if channels % g == 0])


def _convolution(rng: Random, shape: Shape) -> nn.Module:
    """A convolution with some of its options, of signals (c, L) or images (c, h, w)."""
    channels, smallest = shape[0], min(shape[1:])
    groups = rng.choice([1, 1, _groups(rng, channels)])
    kernel = rng.randint(1, min(3, smallest))
    dilation = rng.randint(1, 2) if 2 * (kernel - 1) < smallest else 1
    options = {"kernel_size": kernel, "dilation": dilation, "groups": groups, "bias": rng.random() < 0.7}
    if rng.random() < 0.3:
        options |= {"padding": "same", "padding_mode": rng.choice(["zeros", "reflect", "circular"])}
    else:
        options |= {"stride": rng.randint(1, 2), "padding": rng.randint(0, 1)}
    kind = nn.Conv1d if len(shape) == 2 else nn.Conv2d
    layer = kind(channels, groups * rng.randint(1, 3), **options)
    return nn.Sequential(layer, nn.ReLU(inplace=True)) if rng.random() < 0.4 else layer


def _transposed(rng: Random, shape: Shape) -> nn.Module:
    groups = rng.choice([1, _groups(rng, shape[0])])
    kind = nn.ConvTranspose1d if len(shape) == 2 else nn.ConvTranspose2d
    return kind(shape[0], groups * rng.randint(1, 2), 2, stride=rng.randint(1, 2), groups=groups)


def _same_convolution(rng: Random, shape: Shape) -> nn.Module:
    kind = nn.Conv1d if len(shape) == 2 else nn.Conv2d
    return kind(shape[0], shape[0], 3, padding=1, bias=rng.random() < 0.5)


def _channel_offset(rng: Random, shape: Shape) -> nn.Module:
    return Learned(rng.randrange(len(Learned.FORMS)), rng.choice([(), (shape[0], *[1] * (len(shape) - 1)), shape]))


def _recurrent(rng: Random, shape: Shape) -> nn.Module:
    kind = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
    first = rng.random() < 0.5
    options = {"num_layers": rng.randint(1, 2), "bidirectional": rng.random() < 0.3, "bias": rng.random() < 0.8}
    layer = Recurrent(kind(shape[-1], rng.randint(2, 3), batch_first=first, **options))
    return layer if first else TimeFirst(layer)


def _attention(rng: Random, shape: Shape) -> nn.Module:
    first = rng.random() < 0.5
    heads = _groups(rng, shape[-1])
    layer = Attention(shape[-1], heads, bias=rng.random() < 0.8, batch_first=first)
    return Combined(layer if first else TimeFirst(layer), torch.add)


def _encoder(rng: Random, shape: Shape) -> nn.Module:
    heads, first = _groups(rng, shape[-1]), rng.random() < 0.5
    options = {"dropout": 0.2, "batch_first": first, "norm_first": rng.random() < 0.5}
    layer = nn.TransformerEncoderLayer(shape[-1], heads, _width(rng), **options)
    return layer if first else TimeFirst(layer)


EVERYWHERE: dict[str, Make] = {  # of the last axis
    "linear": _linear,
    "weight norm": lambda rng, shape: parametrizations.weight_norm(_linear(rng, shape)),
    "spectral norm": lambda rng, shape: parametrizations.spectral_norm(_linear(rng, shape)),
    "orthogonal": lambda rng, shape: parametrizations.orthogonal(_square(rng, shape)),
    "turned": lambda rng, shape: Turned(rng.randrange(len(Turned.FORMS)), shape[-1], _width(rng)),
    "residual": lambda rng, shape: Combined(_two_layers(rng, shape), torch.add),
    "gate": lambda rng, shape: Combined(_square(rng, shape), lambda x, g: x * g.sigmoid()),
    "learned": _learned,
    "layer norm": lambda rng, shape: nn.LayerNorm(shape[-1]),
    "RMS norm": lambda rng, shape: nn.RMSNorm(shape[-1]),
    "twice": lambda rng, shape: Twice(_square(rng, shape)),
    "shared": lambda rng, shape: Twice(_square(rng, shape), shared=True),
    "tied": lambda rng, shape: Tied(_square(rng, shape), rng.choice([None, _square(rng, shape)])),
    "low rank": lambda rng, shape: LowRank(shape[-1], _width(rng)),
    "mixture": lambda rng, shape: Mixture(shape[-1], _width(rng)),
    "dropout": lambda rng, shape: nn.Dropout(0.5),
    "PReLU": lambda rng, shape: nn.PReLU(rng.choice([1, shape[0]])),
    "rearranged": lambda rng, shape: Rearranged(rng.randrange(len(Rearranged.FORMS)), _linear(rng, shape)),
    "rearranged offset": lambda rng, shape: Rearranged(rng.randrange(4), _learned(rng, shape)),
    "checkpointed": lambda rng, shape: Checkpointed(_two_layers(rng, shape)),
    "hooked": _hooked,
    "ignored": _ignored,
}
LAYERS: dict[str, dict[str, Make]] = {
    "vectors": {
        **EVERYWHERE,
        "batch norm": lambda rng, shape: nn.BatchNorm1d(shape[0]),
        "group norm": lambda rng, shape: nn.Sequential(nn.Linear(shape[0], 6), nn.GroupNorm(rng.choice([1, 2, 3]), 6)),
        "experts": lambda rng, shape: Experts(shape[0], _width(rng), rng.random() < 0.5),
        "bilinear": lambda rng, shape: Bilinear(shape[0], shape[0], _width(rng)),
        "vector as a sequence": lambda rng, shape: nn.Sequential(
            nn.Unflatten(1, (1, shape[0])), nn.Linear(shape[0], _width(rng)), nn.Flatten()
        ),
    },
    "sequences": {
        **EVERYWHERE,
        "time first": lambda rng, shape: TimeFirst(rng.choice([_linear, _learned_by_time])(rng, shape)),
        "recurrent": _recurrent,
        "cells": lambda rng, shape: Cells(rng.choice([nn.LSTMCell, nn.GRUCell, nn.RNNCell])(shape[-1], _width(rng))),
        "attention": _attention,
        "encoder": _encoder,
        "token": lambda rng, shape: Token(*shape),
        "mixed along time": lambda rng, shape: nn.Sequential(
            Apply(lambda x: x.mT), nn.Linear(shape[0], _width(rng)), Apply(lambda x: x.mT)
        ),
    },
}
LAYERS["signals"] = LAYERS["images"] = {
    "convolution": _convolution,
    "transposed": _transposed,
    "residual": lambda rng, shape: Combined(_same_convolution(rng, shape), torch.add),
    "twice": lambda rng, shape: Twice(_same_convolution(rng, shape)),
    "shared": lambda rng, shape: Twice(_same_convolution(rng, shape), shared=True),
    "weight norm": lambda rng, shape: parametrizations.weight_norm(_same_convolution(rng, shape)),
    "spectral norm": lambda rng, shape: parametrizations.spectral_norm(_same_convolution(rng, shape)),
    "learned": _channel_offset,
    "batch norm": lambda rng, shape: (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(shape[0]),
    "group norm": lambda rng, shape: nn.GroupNorm(_groups(rng, shape[0]), shape[0]),
    "layer norm": lambda rng, shape: nn.LayerNorm(shape),
    "instance norm": lambda rng, shape: (nn.InstanceNorm1d if len(shape) == 2 else nn.InstanceNorm2d)(
        shape[0], affine=True, track_running_stats=rng.random() < 0.5
    ),
    "PReLU": lambda rng, shape: nn.PReLU(rng.choice([1, shape[0]])),
    "rearranged": lambda rng, shape: Rearranged(rng.randrange(4), _same_convolution(rng, shape)),
    "checkpointed": lambda rng, shape: Checkpointed(_same_convolution(rng, shape)),
    "linear": _linear,
}
INPUTS: dict[str, Callable[[Random], Shape]] = {
    "vectors": lambda rng: (rng.randint(3, 8),),
    "sequences": lambda rng: (rng.randint(2, 5), rng.randint(2, 5)),
    "signals": lambda rng: (rng.randint(1, 4), rng.randint(4, 8)),
    "images": lambda rng: (rng.randint(1, 3), rng.randint(4, 6), rng.randint(4, 6)),
    "tokens": lambda rng: (rng.randint(2, 6),),
}
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "flatten": lambda x: x.flatten(1),
    "mean": lambda x: x.flatten(2).mean(2),
    "mean over time": lambda x: x.flatten(2).mean(1),
    "last": lambda x: x.flatten(2)[:, -1],
    "largest": lambda x: x.flatten(2).amax(2),
}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU}
OUTPUTS: dict[str, Any] = {
    "true": "true",
    "mean": "mean",
    "all": "all",
    "a number": lambda z, y: z.square().sum(1),
    "two numbers": lambda z, y: torch.stack([z.logsumexp(1), z.gather(1, y.unsqueeze(1)).squeeze(1).sin()], 1),
}
DTYPES: list[tuple[torch.dtype, torch.dtype | None]] = [  # of the model, and of what is stored
    *[(torch.float64, None)] * 4,
    (torch.float64, torch.float32),
    (torch.float32, None),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.float16),
]
VOCABULARY = 12
WIDE = 12  # features of a vector from which a square matrix would be large


class Model(nn.Module):
    """A body of features, and a head of logits."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def grow(self, more: int) -> None:
        """A head of more classes, which begins with what the old one had."""
        old = self.head
        assert isinstance(old, nn.Linear)
        new = nn.Linear(old.in_features, old.out_features + more, bias=old.bias is not None).to(old.weight)
        with torch.no_grad():
            for name, p in old.named_parameters():
                getattr(new, name)[: len(p)] = p
        for name, p in old.named_parameters():
            getattr(new, name).requires_grad_(p.requires_grad)
        self.head = new


class Body:
    """Layers one after the other, and the shape of what comes out of them."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.layers, self.words = shape, list[nn.Module](), list[str]()

    def add(self, layer: nn.Module, word: str, tokens: bool = False) -> None:
        x = torch.zeros(2, *self.shape)
        with torch.no_grad():
            self.shape = tuple(layer.eval()(x.long() if tokens else x).shape[1:])
        self.layers.append(layer)
        self.words.append(word)

    def add_some(self, rng: Random, kind: str, most: int) -> None:
        """Up to so many layers of a table, each perhaps with an activation behind it."""
        for _ in range(rng.randint(0, most)):
            name = rng.choice(list(LAYERS[kind]))
            self.add(LAYERS[kind][name](rng, self.shape), name)
            if rng.random() < 0.5:
                activation = rng.choice(list(ACTIVATIONS))
                self.add(ACTIVATIONS[activation](), activation)


@dataclass
class Case:
    """A model, the shape of its examples, and the options of its memory, in words as well."""

    seed: int
    rng: Random  # for what happens to it
    kind: str
    shape: Shape
    classes: int
    model: Model
    dtype: torch.dtype
    options: dict[str, Any]
    words: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"seed {self.seed}: {', '.join(self.words)}"

    def data(self, n: int) -> tuple[Tensor, Tensor]:
        """Another n examples."""
        y = torch.randint(self.classes, (n,))
        if self.kind == "tokens":
            return torch.randint(VOCABULARY, (n, *self.shape)), y
        return torch.randn(n, *self.shape, dtype=torch.float64).to(self.dtype), y


def drawn(seed: int) -> Case:
    """The case of a number: its model, in training mode, and the options of its memory."""
    rng = Random(seed)
    torch.manual_seed(seed)
    kind = rng.choice(list(INPUTS))
    shape, classes = INPUTS[kind](rng), rng.randint(2, 4)
    body = _body(rng, kind, shape)
    if kind == "tokens" and rng.random() < 0.3:
        head: nn.Module = TiedHead(body.shape[0], body.layers[0])
        classes = VOCABULARY
        body.words.append("a head tied to the table")
    else:
        head = _linear(rng, body.shape, classes)
    model = Model(nn.Sequential(*body.layers), head).train()
    for module in model.modules():
        if (
            isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        ):  # statistics of a model that has been trained
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    dtype, stored = rng.choice(DTYPES)
    options = {"dtype": stored, "chunk_size": rng.choice([None, None, 1, 2, 3])}
    words = [f"{kind} of {shape}", *body.words, f"{dtype} stored as {stored}", f"{options['chunk_size']} at a time"]
    return Case(seed, rng, kind, shape, classes, model.to(dtype), dtype, options, words)


def _body(rng: Random, kind: str, shape: Shape) -> Body:
    body = Body(shape)
    if kind == "tokens":
        table = {"embedding": nn.Embedding, "bag": nn.EmbeddingBag, "embedding and positions": Words}
        name = rng.choice(list(table))
        places = (shape[0],) if name == "embedding and positions" else ()
        body.add(table[name](VOCABULARY, rng.randint(2, 5), *places, padding_idx=rng.choice([None, 0, 3])), name, True)
    if len(body.shape) > 1:
        body.add_some(rng, "sequences" if kind == "tokens" else kind, 3)
        pool = rng.choice(list(POOLS))
        body.add(Apply(POOLS[pool]), pool)
        if body.shape[0] > WIDE:
            body.add(_linear(rng, body.shape), "linear")
    body.add_some(rng, "vectors", 3)
    return body
