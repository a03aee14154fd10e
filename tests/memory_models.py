"""Small models, one for each way a gradient can reach a parameter, each with inputs that fit it."""

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ogd.memory import GradientMemory, Memory
from reference import flat, logit_gradients, trainable

torch.set_num_threads(1)  # these models are so small that a second thread costs more than it brings


class LeNet(nn.Module):
    """Convolutions with every option, and in-place ReLUs that overwrite what a hook saw."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 6, 3, padding="same", dilation=2, padding_mode="reflect", bias=False),
            nn.Tanh(),
            nn.Conv2d(6, 6, 3, groups=3),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 12, 2),
            nn.Flatten(),
        )
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Wave(nn.Module):
    """A Conv1d whose gradient is smallest as its input and δ."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).tanh().mean(-1))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.stem(x)), inplace=True)
        x = functional.relu(self.norm2(self.conv(x)) + x)
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """An embedding, packed attention weights, an output projection used and never called, layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x))[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    """The output layer's weight is the embedding's; another layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 5)
        self.twice = nn.Linear(5, 5)
        self.head = nn.Linear(5, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.twice(self.twice(self.embed(x).mean(1)).tanh()))


class Odd(nn.Module):
    """All that a hook could get wrong: weights used outside their layer, axes that are not the examples'."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 6)  # called once, and its weight used once more
        self.time_first = nn.Linear(6, 6)  # on (T, B, in) where T = B
        self.shifted = nn.Linear(6, 6)  # its output is replaced by a hook
        self.shifted.register_forward_hook(lambda layer, args, out: 2 * out)
        self.dropped = nn.Linear(6, 6)  # called, its result ignored, its weight used elsewhere
        self.unused = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        B = len(x)
        h = self.used(x).tanh() @ self.used.weight
        h = self.time_first(h.expand(B, B, 6) if B > 1 else h.expand(1, 1, 6)).tanh().mean(0)
        self.dropped(h)
        h = self.shifted(h).tanh() @ self.dropped.weight
        return self.head(h * self.scale)


class Shared(nn.Module):
    """A module that is registered under two names, one of them inside another module, and called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.body = nn.Sequential(self.layer, nn.Tanh(), self.layer)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.layer(x).tanh()))


class Renormed(nn.Module):
    """An embedding whose forward pass renormalises its weight, and a cell whose forward pass keeps its state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 5, max_norm=0.5)
        self.cell = nn.GRU(5, 5, batch_first=True)
        self.head = nn.Linear(5, 4)
        self.states: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last, _ = self.cell(self.embed(x))
        self.states.append(self.last)
        return self.head(self.last[:, -1])


class Routed(nn.Module):
    """Two experts, each of which sees some of the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(3, 5), nn.Linear(3, 5)])
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), 5)
        for side, expert in zip((x[:, 0] > 0, x[:, 0] <= 0), self.experts, strict=True):
            rows = side.nonzero().flatten()
            if len(rows):
                out = out.index_copy(0, rows, expert(x[rows]))
        return self.head(out.tanh())


class Autocast(nn.Module):
    """Computes in bfloat16 whatever its weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(9), nn.Conv1d(3, 4, 3)
        self.head = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.conv(self.norm(x)).relu()).mean(1).float()


def spectral() -> nn.Module:
    """The old spectral norm, which computes its weight in a hook and keeps it as an attribute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 4))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 9), nn.ReLU(), nn.Linear(9, 4))


def sequences() -> nn.Module:
    """Linear on sequences, T outer products per example: factored in the wide layer, dense in the narrow."""
    return nn.Sequential(nn.Linear(9, 11), nn.Tanh(), nn.Linear(11, 2), nn.Flatten(), nn.Linear(6, 4))


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape)


def _tokens(size: int, length: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(size, (n, length))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (mlp, _normal(12)),
    "sequences": (sequences, _normal(3, 9)),
    "lenet": (LeNet, _normal(1, 7, 7)),
    "wave": (Wave, _normal(8, 9)),
    "resnet": (ResNet, _normal(2, 5, 5)),
    "transformer": (Transformer, _tokens(7, 5)),
    "lstm": (Recurrent, _normal(4, 3)),
    "tied": (Tied, _tokens(6, 4)),
    "odd": (Odd, _normal(6)),
    "shared": (Shared, _normal(5)),
    "routed": (Routed, _normal(3)),
    "spectral": (spectral, _normal(6)),
}
FICKLE = {  # their forward passes change them, or compute in another precision than that of their weights
    "renormed": (Renormed, _tokens(6, 4)),
    "autocast": (Autocast, _normal(3, 9)),
}


def make(name: str, n: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in training mode, n inputs and their labels."""
    torch.manual_seed(seed)
    build, inputs = (MODELS | FICKLE)[name]
    model = build().to(dtype)
    for module in model.modules():  # statistics of a model that has been trained
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    x = inputs(n)
    x = x.to(dtype) if x.is_floating_point() else x
    return model, x, torch.randint(4, (n,))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def rows(memory: Memory) -> Tensor:
    """G (n, p), its columns in the order of the model's parameters."""
    columns = []
    for name, p in memory._parameters.named().items():
        G = torch.zeros(len(memory), p.numel(), dtype=torch.float64)
        for piece in memory.store.only({name}):
            G[piece.start : piece.stop] += piece.block.rows(0, piece.block.n)
        columns.append(G)
    return torch.cat(columns, 1)


def remembered(
    name: str, dtype: torch.dtype = torch.float64, outputs: str = "true"
) -> tuple[Memory, Tensor, Tensor, Tensor]:
    """A memory of one task, its G, and another task's x and y."""
    model, x, y = make(name, n=5, dtype=dtype)
    memory = GradientMemory(model, outputs=outputs)
    memory.remember((x, y))
    G = logit_gradients(copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x, y, outputs=outputs)
    _, x, y = make(name, n=8, seed=1, dtype=dtype)
    return memory, G, x, y


def moved(model: nn.Module, before: Tensor) -> Tensor:
    return flat(trainable(model)) - before
