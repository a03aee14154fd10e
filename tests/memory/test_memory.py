"""What a memory stores: which examples, which parameters, how much; and what it refuses."""

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from memory_models import make, rows, train
from ogd.memory import GradientMemory
from reference import flat, logit_gradients, orthonormal_rows, project_dense


class Stream(IterableDataset):
    def __init__(self, data: TensorDataset):
        self.data = data

    def __iter__(self):
        return iter(self.data)


class Plain(Dataset):
    """Yields numbers, not tensors, as many data sets do for labels."""

    def __init__(self, data: TensorDataset):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int):
        x, y = self.data[i]
        return x, int(y)


SOURCES = {
    "tensors": lambda x, y: (x, y),
    "dataset": TensorDataset,
    "plain dataset": lambda x, y: Plain(TensorDataset(x, y)),
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=4),
    "shuffled loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True),
    "loader with a sampler": lambda x, y: DataLoader(
        TensorDataset(x, y), 4, sampler=SubsetRandomSampler(range(len(x)))
    ),
    "stream": lambda x, y: Stream(TensorDataset(x, y)),
    "loader of a stream": lambda x, y: DataLoader(Stream(TensorDataset(x, y)), batch_size=4),
}


def same_rows(G: torch.Tensor, H: torch.Tensor) -> bool:
    """Whether each row of G is one of H, none twice."""
    nearest = torch.cdist(G, H).min(1)
    return bool((nearest.values < 1e-9).all()) and len(set(nearest.indices.tolist())) == len(G)


@pytest.mark.parametrize("per_task", [None, 30, 5, 1])
@pytest.mark.parametrize("source", SOURCES)
def test_examples_are_drawn_from_any_source(source: str, per_task: int | None) -> None:
    model, x, y = make("mlp", n=11)
    memory = GradientMemory(model, per_task)
    memory.remember(SOURCES[source](x, y))
    assert len(memory) == min(per_task or 11, 11)
    assert same_rows(rows(memory), logit_gradients(model, x, y))


@pytest.mark.parametrize("source", SOURCES)
def test_the_draw_is_uniform_and_follows_the_generator(source: str) -> None:
    model = nn.Linear(1, 1, bias=False).double()
    x = torch.arange(6.0).double().unsqueeze(1)

    def drawn(seed: int) -> tuple[int, ...]:
        torch.manual_seed(0)
        memory = GradientMemory(model, per_task=2)
        data = SOURCES[source](x, torch.zeros(6, dtype=torch.long))
        memory.remember(data, generator=torch.Generator().manual_seed(seed))
        return tuple(sorted(rows(memory).flatten().int().tolist()))

    draws = [drawn(seed) for seed in range(120)]
    assert drawn(3) == draws[3]
    counts = torch.tensor([i for draw in draws for i in draw]).bincount(minlength=6)
    assert counts.min() > 20 and counts.max() < 60  # noqa: PT018  (40 expected each, standard deviation 5)


def test_a_sampler_decides_what_may_be_drawn() -> None:
    model, x, y = make("mlp", n=11)
    memory = GradientMemory(model, 3)
    memory.remember(DataLoader(TensorDataset(x, y), 4, sampler=SubsetRandomSampler([2, 5, 7, 8])))
    assert same_rows(rows(memory), logit_gradients(model, x[[2, 5, 7, 8]], y[[2, 5, 7, 8]]))


def test_without_a_generator_torch_s_seed_decides() -> None:
    def drawn(seed: int) -> torch.Tensor:
        model, x, y = make("mlp", n=30)
        torch.manual_seed(seed)
        memory = GradientMemory(model, 4)
        memory.remember((x, y))
        memory.remember((x, y))
        G = rows(memory)
        assert not same_rows(G[:4], G[4:])
        return G

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_tasks_add_up_and_only_new_rows_of_K_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = make("mlp", n=9)
    memory = GradientMemory(model, outputs="all")
    computed = []
    from ogd.memory.projection import store

    original = store.extend_gram
    monkeypatch.setattr(
        store, "extend_gram", lambda K, pieces, n: computed.append(n - len(K)) or original(K, pieces, n)
    )
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        memory.remember((x[part], y[part]))
        assert memory.rank == len(orthonormal_rows(rows(memory)))
        _ = memory.rank
    assert memory.task_sizes == (16, 4, 16)
    assert computed == [16, 4, 16]
    assert len(memory.store.pieces) == 3  # one per layer, whatever the number of tasks
    torch.testing.assert_close(memory.store.gram(memory.store.shapes), rows(memory) @ rows(memory).mT)


def test_the_rank_is_computed_once_per_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from ogd.memory.projection import store

    computed = []
    original = store.rank
    monkeypatch.setattr(store, "rank", lambda K, rtol: computed.append(len(K)) or original(K, rtol))
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    for _ in range(2):
        memory.remember((x, y))
        assert [memory.rank, memory.rank] == [6, 6]
    assert computed == [12]  # that the first six are independent their Cholesky factor shows


def test_sequences_of_other_lengths_and_other_storage_share_one_K() -> None:
    torch.manual_seed(0)
    model = nn.Linear(9, 11).double()
    memory = GradientMemory(model, outputs=lambda f, y: f.mean(1)[:, 0], per_task=None)
    for length in (2, 3, 8):  # factored, factored with another T, dense
        memory.remember((torch.randn(4, length, 9).double(), None))
    assert len(memory.store.pieces) == 4
    K = memory.store.gram(memory.store.shapes)
    torch.testing.assert_close(K, rows(memory) @ rows(memory).mT)
    update = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    Pu = flat(list(memory.project(update).values()))
    torch.testing.assert_close(Pu, project_dense(rows(memory), flat(list(update.values()))), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "chosen",
    [["2", "0.bias"], lambda m: [m[0].weight, m[4].bias], lambda m: list(m.parameters()), ["0", "2", "4"]],
)
def test_params_chooses_what_is_protected(chosen: object) -> None:
    model, x, y = make("mlp")
    params = chosen(model) if callable(chosen) else chosen
    memory = GradientMemory(model, params=params)
    memory.remember((x, y))
    protected = memory._parameters.trainable()
    assert set(memory.store.shapes) == set(protected)
    G = logit_gradients(model, x, y, params=list(protected.values()))
    update = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    projected = memory.project(update)
    assert all(torch.equal(projected[n], update[n]) for n in update if n not in protected)
    assert (G @ flat([projected[n] for n in protected])).abs().max() < 1e-10


def test_frozen_parameters_are_left_out() -> None:
    model, x, y = make("mlp")
    model[0].weight.requires_grad_(False)
    memory = GradientMemory(model)
    memory.remember((x, y))
    assert "0.weight" not in memory.store.shapes
    assert "0.bias" in memory.store.shapes
    G = logit_gradients(model, x, y)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    before = flat([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer, x, y.flip(0), 4)
    moved = flat([p for p in model.parameters() if p.requires_grad]) - before
    assert (G @ moved).abs().max() < 1e-10


def degenerate(kind: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model, x, y = make("mlp", n=6)
    if kind == "duplicates":
        return model, x.repeat(3, 1), y.repeat(3)
    if kind == "dead ReLU":
        model[0].bias.data.fill_(-1e3)
        model[2].bias.data.fill_(-1e3)
        model[4] = nn.Linear(9, 4, bias=False).double()
    if kind == "more directions than parameters":
        model, x, y = nn.Linear(3, 2).double(), torch.randn(20, 3).double(), torch.randint(2, (20,))
    if kind == "one example":
        return model, x[:1], y[:1]
    return model, x, y


@pytest.mark.filterwarnings("ignore:.*stored gradients protect nothing")  # dead ReLU
@pytest.mark.filterwarnings("ignore:.*of an update is left")  # where nothing may move any more
@pytest.mark.parametrize("kind", ["duplicates", "dead ReLU", "more directions than parameters", "one example"])
def test_degenerate_gradients_are_harmless(kind: str) -> None:
    model, x, y = degenerate(kind)
    memory = GradientMemory(model)
    memory.remember((x, y))
    G = logit_gradients(model, x, y)
    ranks = {"duplicates": 6, "dead ReLU": 0, "more directions than parameters": 8, "one example": 1}
    assert memory.rank == ranks[kind]
    update = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    Pu = flat(list(memory.project(update).values()))
    torch.testing.assert_close(Pu, project_dense(G, flat(list(update.values()))), rtol=0, atol=1e-9)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(model, optimizer, x, y, 3)
    assert all(p.isfinite().all() for p in model.parameters())


def test_what_a_memory_tells_of_itself() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    assert (len(memory), memory.rank, memory.nbytes, memory.task_sizes) == (0, 0, 0, ())
    memory.remember((x, y))
    assert len(memory) == memory.rank == 6
    resident = memory.nbytes + 2 * 8 * 6 * 6 + 8 * 6  # K, its Cholesky factor and the scales
    assert memory.resident_nbytes == resident
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with memory.protect(optimizer, every=1):
        train(model, optimizer, x, y, 1)
        assert memory.resident_nbytes >= resident + 8 * 6 * 6  # K⁺, and no more than its rows
    assert repr(memory) == (
        "GradientMemory(6 directions of 1 task, 2,592 bytes; "
        "protects 269 numbers in 6 parameters of Sequential; outputs='true')"
    )


def test_an_empty_memory_costs_and_changes_nothing() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    update = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    assert all(torch.equal(u, update[n]) for n, u in memory.project(update).items())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    protection = memory.protect(optimizer, every=1)
    train(model, optimizer, x, y, 2)
    assert protection.projector is None
