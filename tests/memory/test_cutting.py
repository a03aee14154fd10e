"""Blocks cut along the first axis of their parameters, compared with columns of dense rows."""

import itertools

import pytest
import torch

from memory_models import MODELS, make
from ogd.memory import Convolved, Dense, Factored, GradientMemory
from ogd.memory.blocks.cutting import Cut, can_cut, cut_block, whole_block
from ogd.memory.blocks.sparse import Sparse


def cuts(size: int, ranks: int) -> list[Cut]:
    ends = torch.tensor([0, *map(len, torch.arange(size).chunk(ranks))]).cumsum(0).tolist()
    return [Cut(start, stop, size) for start, stop in itertools.pairwise(ends)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_parts_have_the_columns_of_their_slices(name: str, ranks: int) -> None:
    model, x, y = make(name)
    memory = GradientMemory(model)
    memory.remember((x, y))
    for piece in memory.store.pieces:
        sizes = {shape[0] if shape else 0 for shape in (memory.store.shapes[one] for one in piece.names)}
        every = cuts(min(sizes), ranks)
        if min(sizes) < ranks or len(sizes) > 1 or not can_cut(piece.block, every):
            continue
        parts = [cut_block(piece.block, cut) for cut in every]
        again = whole_block(parts, every)
        assert type(again) is type(piece.block)
        torch.testing.assert_close(again.rows(0, again.n), piece.block.rows(0, again.n), rtol=0, atol=0)
        for i, whole in enumerate(piece.block.split()):
            G = whole.rows(0, whole.n).unflatten(1, (min(sizes), -1))
            for cut, part in zip(every, parts, strict=True):
                found = part.split()[i].rows(0, part.n)
                torch.testing.assert_close(found, G[:, cut.start : cut.stop].flatten(1), rtol=0, atol=1e-15)


def test_what_has_no_part_of_its_own_form_is_told() -> None:
    n, halves = 2, cuts(4, 2)
    A, D = torch.randn(n, 4), torch.randn(n, 4)
    assert can_cut(Factored(A, D), halves)
    assert can_cut(Factored(A, D, bias=False, out_first=False), halves)
    assert not can_cut(Factored(A, D, out_first=False), halves)
    images = torch.randn(n, 4, 5, 5)
    assert can_cut(Convolved(images, images, (1, 1)), halves)
    assert not can_cut(Convolved(images, images, (1, 1), groups=2), halves)
    table = Sparse(torch.zeros(n, dtype=torch.int32), D, 1)
    assert not can_cut(table, [Cut(0, 1, 1), Cut(1, 1, 1)])
    assert can_cut(Dense(D), [Cut(0, 1, 1), Cut(1, 1, 1)])
