"""The three questions of a block, against its rows written out; for one model and for a stack of runs."""

import pytest
import torch
from torch import Tensor

from ogd.memory import Block, Dense, Factored, Sparse
from ogd.memory.blocks.gram import gram_by_pairs, gram_by_parts

LEADS = [(), (3,), (2, 3)]


def factored(n: int, T: int, bias: bool, out_first: bool, lead: tuple[int, ...]) -> Factored:
    A, D = (torch.randn(*lead, n * T, width, dtype=torch.float64) for width in (5, 4))
    return Factored(A, D, bias=bias, T=T, out_first=out_first)


def update_of(block: Block, lead: tuple[int, ...]) -> list[Tensor]:
    if not isinstance(block, Factored):
        return [torch.randn(*lead, 5, 4, dtype=torch.float64)]
    shapes = [(4, 5) if block.out_first else (5, 4), (4,)][: 1 + block.bias]
    return [torch.randn(*lead, *shape, dtype=torch.float64) for shape in shapes]


def flat(update: list[Tensor], lead: tuple[int, ...]) -> Tensor:
    return torch.cat([u.reshape(*lead, -1) for u in update], -1)


def sparse(n: int, T: int, lead: tuple[int, ...]) -> Sparse:
    index = torch.randint(5, (*lead, n * T), dtype=torch.int32)
    return Sparse(index, torch.randn(*lead, n * T, 4, dtype=torch.float64), V=5, T=T)


BLOCKS = {
    "linear": lambda n, lead: factored(n, 1, True, True, lead),
    "no bias": lambda n, lead: factored(n, 1, False, True, lead),
    "in first": lambda n, lead: factored(n, 1, True, False, lead),
    "sequence": lambda n, lead: factored(n, 3, True, True, lead),
    "sequence, in first, no bias": lambda n, lead: factored(n, 3, False, False, lead),
    "sparse": lambda n, lead: sparse(n, 3, lead),
    "dense": lambda n, lead: Dense(torch.randn(*lead, n, 20, dtype=torch.float64)),
}


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_gram_overlap_and_combine_are_those_of_the_rows(kind: str, lead: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    block, other = BLOCKS[kind](6, lead), BLOCKS[kind](3, lead)
    G, H = block.rows(0, 6), other.rows(0, 3)
    update = update_of(block, lead)
    c = torch.randn(*lead, 6, dtype=torch.float64)
    torch.testing.assert_close(block.gram(other), G @ H.mT)
    torch.testing.assert_close(block.squares(), G.square().sum(-1))
    torch.testing.assert_close(block.overlap(update), (G @ flat(update, lead).unsqueeze(-1)).squeeze(-1))
    combined = (c.unsqueeze(-2) @ G).squeeze(-2)
    torch.testing.assert_close(flat(list(block.combine(c)), lead), combined)
    expected = flat(update, lead) + combined
    block.add_combination(update, c)
    torch.testing.assert_close(flat(update, lead), expected)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_run_of_a_stack_is_that_run_alone(kind: str) -> None:
    stack = BLOCKS[kind](6, (3,))
    update, c = update_of(stack, (3,)), torch.randn(3, 6, dtype=torch.float64)
    for r in range(3):
        alone = type(stack)(**{**vars(stack), **{key: t[r] for key, t in stack.tensors().items()}})
        torch.testing.assert_close(stack.gram(stack)[r], alone.gram(alone))
        torch.testing.assert_close(stack.overlap(update)[r], alone.overlap([u[r] for u in update]))
        for both, one in zip(stack.combine(c), alone.combine(c[r]), strict=True):
            torch.testing.assert_close(both[r], one)


@pytest.mark.parametrize("kind", BLOCKS)
def test_split_slice_and_join_keep_the_rows(kind: str) -> None:
    block, more = BLOCKS[kind](6, ()), BLOCKS[kind](2, ())
    G = block.rows(0, 6)
    torch.testing.assert_close(torch.cat([part.rows(0, 6) for part in block.split()], -1), G)
    torch.testing.assert_close(block[2:5].rows(0, 3), G[2:5])
    assert block.fits(more)
    joined = block.concatenate(more, more)
    torch.testing.assert_close(joined.rows(0, 10), torch.cat([G, more.rows(0, 2), more.rows(0, 2)]))


def test_blocks_of_different_kinds_do_not_join_but_have_a_gram() -> None:
    long, short = factored(4, 3, False, True, ()), factored(5, 1, False, True, ())
    dense, table = Dense(torch.randn(2, 20, dtype=torch.float64)), sparse(3, 2, ())
    for one in (long, short, dense, table):
        for other in (long, short, dense, table):
            assert one.fits(other) == (one is other)
            torch.testing.assert_close(one.gram(other), one.rows(0, one.n) @ other.rows(0, other.n).mT)


def test_a_large_gram_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    block = factored(7, 3, True, True, ())
    whole = block.gram(block)
    monkeypatch.setattr("ogd.memory.blocks.gram.CHUNK", 50)
    for form in (gram_by_pairs, gram_by_parts):
        torch.testing.assert_close(form(block, block), whole)
        torch.testing.assert_close(form(block, block[2:5]), whole[:, 2:5])


def test_gram_is_float64_whatever_is_stored() -> None:
    block = factored(4, 1, True, True, ()).to(torch.device("cpu"), torch.bfloat16)
    K = block.gram(block)
    assert K.dtype == torch.float64
    torch.testing.assert_close(K, block.rows(0, 4) @ block.rows(0, 4).mT)


def test_both_forms_of_a_gram_are_those_of_the_rows() -> None:
    for out_first in (True, False):
        one, other = factored(140, 2, True, out_first, ()), factored(6, 3, True, out_first, ())
        G, H = one.rows(0, 140), other.rows(0, 6)
        for form in (gram_by_pairs, gram_by_parts):
            torch.testing.assert_close(form(one, one), G @ G.mT)
            torch.testing.assert_close(form(one, other), G @ H.mT)


@pytest.mark.parametrize("often", [0, 20, 10**9])
def test_entries_that_rows_share_count_by_products_and_by_pairs(often: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogd.memory.blocks.sparse.OFTEN", often)
    one, other = sparse(9, 4, ()), sparse(7, 2, ())
    torch.testing.assert_close(one.gram(other), one.rows(0, 9) @ other.rows(0, 7).mT)
    assert one[0:0].gram(other).shape == (0, 7)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("layout", ["transposed", "bfloat16", "every other row"])
def test_a_table_is_added_to_in_place_whatever_its_layout(layout: str, lead: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    block, c = sparse(3, 2, lead), torch.randn(*lead, 3, dtype=torch.float64)
    tables = {
        "transposed": torch.randn(*lead, 4, 5, dtype=torch.float64).mT,
        "bfloat16": torch.randn(*lead, 5, 4).bfloat16(),
        "every other row": torch.randn(*lead, 10, 4, dtype=torch.float64)[..., ::2, :],
    }
    table = tables[layout]
    expected = table.double() + block.combine(c)[0]
    block.add_combination([table], c)
    rounding = 3e-2 if layout == "bfloat16" else 1e-12
    torch.testing.assert_close(table.double(), expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("layout", ["channels_last", "bfloat16"])
def test_adding_in_place_works_where_the_matrix_product_cannot(layout: str) -> None:
    block = Factored(torch.randn(6, 2 * 9), torch.randn(6, 4), bias=False, T=3)
    weight = torch.randn(4, 2, 3, 3)
    weight = weight.to(torch.bfloat16) if layout == "bfloat16" else weight.to(memory_format=torch.channels_last)
    c = torch.randn(2)
    expected = weight.float() + block.combine(c)[0].view(4, 2, 3, 3)
    block.add_combination([weight], c)
    torch.testing.assert_close(weight.float(), expected, rtol=1e-2 if layout == "bfloat16" else 1e-6, atol=1e-2)
