"""Who gives which examples, and how ranks know that they hold the same: pure functions."""

import pytest
import torch

from memory_models import make
from ogd.memory import GradientMemory
from ogd.memory.data.distributed_sampling import balanced_shares, keys, shares
from ogd.memory.projection.store import Store


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [None, 1, 7, 40, 1000])
def test_shares_of_parts_and_of_copies(ranks: int, count: int | None) -> None:
    everything = keys([(torch.randn(50, 3), torch.arange(50))])
    parts = [everything[r::ranks] for r in range(ranks)]
    uneven = [everything[: 2 if r else 50 - 2 * ranks] if r == 0 else everything[-2 * r :][:2] for r in range(ranks)]
    for offers, total in ((parts, 50), ([everything] * ranks, 50), (uneven, len({k for o in uneven for k in o}))):
        given = shares(offers, count, 0)
        chosen = [offers[r][i] for r, share in enumerate(given) for i in share]
        assert len(chosen) == len(set(chosen)) == min(total, count or total)
        assert all(share == sorted(share) for share in given)
        if offers is not uneven:
            assert max(map(len, given)) - min(map(len, given)) <= 1


def test_a_rank_gives_a_uniform_draw_of_its_part() -> None:
    """Data in the order of its classes: what a rank gives must not be the first ones."""
    parts = [keys([(torch.arange(150.0)[:, None] + 1000 * r, None)]) for r in (0, 1)]
    for count in (20, 150, 200, 280):
        for share in shares(parts, count, 0):
            assert len(share) == count / 2
            assert abs(sum(share) / len(share) - 74.5) < 30 / len(share) ** 0.5 * 3
            assert len(share) < 100 or abs(sum(share) / len(share) - 74.5) < 5


@pytest.mark.parametrize("copies", [False, True])
def test_balanced_shares_are_even_among_labels_and_ranks(copies: bool) -> None:
    labels = [i % 30 if i < 60 else 0 for i in range(90)]
    everything = keys([(torch.arange(90.0)[:, None], torch.tensor(labels))])
    parts = [slice(None)] * 3 if copies else [slice(r, None, 3) for r in range(3)]
    offers, those = [everything[part] for part in parts], [labels[part] for part in parts]
    given = balanced_shares(offers, those, 30, 0)
    chosen = [(offers[r][i], those[r][i]) for r, share in enumerate(given) for i in share]
    assert sorted(label for _, label in chosen) == list(range(30))
    assert len(set(chosen)) == 30
    assert all(share == sorted(share) and len(share) == 10 for share in given)


def test_keys_tell_examples_apart_whatever_they_are() -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])
    y = torch.tensor([0, 1, 1])
    assert len(set(keys([(x, y)]))) == 3
    assert keys([(x, None)])[1] == (keys([(x, None)])[0][0], 1)
    for tree in (x.bfloat16(), {"a": x, "mask": x > 1}, (x, [y, "text"])):
        assert keys([(tree, y)]) == keys([(tree, y)])
        assert len(set(keys([(tree, y)]))) == 3


def test_a_digest_sees_every_bit() -> None:
    def made(change: float = 0.0, n: int = 3) -> Store:
        model, x, y = make("mlp")
        memory = GradientMemory(model)
        memory.remember((x[:n] + torch.tensor([change] + [0.0] * 11).double(), y[:n]))
        return memory.store

    assert made().fingerprint == made().fingerprint
    assert len({made().fingerprint, made(1e-12).fingerprint, made(n=2).fingerprint, Store().fingerprint}) == 4
