"""A store of a stack of runs is, run by run, the stores of single models."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from ogd.memory.blocks.block import Block
from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.factored import Factored
from ogd.memory.blocks.pieces import Piece, append_pieces
from ogd.memory.blocks.stacking import stacked
from ogd.memory.projection.projector import projector_of
from ogd.memory.projection.store import Store

R = 3
SHAPES = {"w": (4, 5), "b": (4,), "conv": (3, 2, 2, 1), "in": (6, 4), "scale": (7,)}
Task = tuple[list[list[Piece]], int]  # the pieces of each run, and their number of rows


def factored(names: tuple[str, ...], n: int, start: int, T: int = 1, out_first: bool = True) -> Piece:
    shape = torch.Size(SHAPES[names[0]])
    out, into = (shape[0], shape[1:].numel()) if out_first else (shape[1], shape[0])
    A, D = (torch.randn(n * T, width, dtype=torch.float64) for width in (into, out))
    return Piece(names, Factored(A, D, bias=len(names) == 2, T=T, out_first=out_first), start)


def dense(name: str, n: int, start: int) -> Piece:
    return Piece((name,), Dense(torch.randn(n, torch.Size(SHAPES[name]).numel(), dtype=torch.float64)), start)


def poor(pieces: list[Piece], rank: int) -> list[Piece]:
    """The same pieces with only the first `rank` rows, repeated, so that G has that rank."""
    rows = [i % rank for i in range(pieces[0].block.n)]
    return [Piece(p.names, _taken(p.block, rows), p.start) for p in pieces]


def _taken(block: Block, rows: Sequence[int]) -> Block:
    parts = [block[i : i + 1] for i in rows]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.concatenate(part)
    return whole


KINDS: dict[str, Callable[[int, int], list[Piece]]] = {
    "linear": lambda n, start: [factored(("w", "b"), n, start)],
    "positions": lambda n, start: [factored(("conv",), n, start, T=4), factored(("w", "b"), n, start, T=2)],
    "in first": lambda n, start: [factored(("in",), n, start, out_first=False)],
    "dense": lambda n, start: [dense("scale", n, start), dense("w", n, start)],
    "mixed": lambda n, start: [
        factored(("w", "b"), n, start),
        factored(("conv",), n, start, T=3),
        factored(("in",), n, start, T=2, out_first=False),
        dense("scale", n, start),
    ],
}
MIXED_TASKS = ["mixed", "dense", "positions", "linear"]  # stored in another form from task to task


def shapes_of(pieces: list[Piece], lead: tuple[int, ...] = ()) -> dict[str, torch.Size]:
    return {name: torch.Size((*lead, *SHAPES[name])) for piece in pieces for name in piece.names}


def tasks_of(kinds: Sequence[str]) -> list[Task]:
    """Several tasks of R runs; in each the first run has rank 2 at most, the last one duplicates none."""
    torch.manual_seed(0)
    tasks, start = [], 0
    for i, kind in enumerate(kinds):
        n = 4 + i
        runs = [KINDS[kind](n, start) for _ in range(R)]
        tasks.append(([poor(runs[0], 2), poor(runs[1], 3), *runs[2:]], n))
        start += n
    return tasks


def stores(tasks: list[Task], dtype: torch.dtype) -> tuple[Store, list[Store]]:
    """The store of the stack, and those of its runs."""
    stack, alone = Store(), [Store() for _ in range(R)]
    for given, n in tasks:
        runs = [[Piece(p.names, p.block.to(torch.device("cpu"), dtype), p.start) for p in run] for run in given]
        stack = stack.with_task(stacked(runs), n, shapes_of(runs[0], (R,)))
        alone = [store.with_task(run, n, shapes_of(run)) for store, run in zip(alone, runs, strict=True)]
    return stack, alone


def removed(store: Store, update: dict[str, Tensor]) -> dict[str, Tensor]:
    """P u."""
    result = {name: u.clone() for name, u in update.items()}
    projector = projector_of(store, result)
    if projector is not None:
        ours = [result[name] for name in projector.names]
        projector.remove(ours, [-u for u in ours])
    return result


CASES = {**{kind: [kind] for kind in KINDS}, "several tasks": ["mixed"] * 3, "other forms": MIXED_TASKS}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_a_stack_projects_each_run_as_its_own_store_does(case: str, dtype: torch.dtype) -> None:
    stack, alone = stores(tasks_of(CASES[case]), dtype)
    assert len(stack) == len(alone[0])
    assert stack.rank == max(store.rank for store in alone)
    assert alone[0].rank < alone[2].rank
    update = {name: torch.randn(shape, dtype=dtype) for name, shape in stack.shapes.items()}
    K, Pu = stack.gram(stack.shapes), removed(stack, update)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for r, store in enumerate(alone):
        torch.testing.assert_close(K[r], store.gram(store.shapes))
        for name, u in removed(store, {name: u[r] for name, u in update.items()}).items():
            torch.testing.assert_close(Pu[name][r], u, rtol=tolerance, atol=tolerance)


def test_some_parameters_of_a_stack_are_projected_as_those_of_its_runs() -> None:
    stack, alone = stores(tasks_of(MIXED_TASKS), torch.float64)
    names = ("w", "scale")
    update = {name: torch.randn(R, *SHAPES[name], dtype=torch.float64) for name in names}
    Pu = removed(stack, update)
    for r, store in enumerate(alone):
        torch.testing.assert_close(stack.gram(names)[r], store.gram(names))
        for name, u in removed(store, {name: u[r] for name, u in update.items()}).items():
            torch.testing.assert_close(Pu[name][r], u)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_of_one_run_has_its_rows(kind: str) -> None:
    torch.manual_seed(0)
    run = KINDS[kind](4, 0)
    store, alone = (Store().with_task(p, 4, shapes_of(run, lead)) for p, lead in ((stacked([run]), (1,)), (run, ())))
    torch.testing.assert_close(store.gram(store.shapes), alone.gram(alone.shapes)[None])


def test_an_empty_store_of_a_stack_grows() -> None:
    empty = Store()
    assert empty.gram({"w", "b"}).shape == (0, 0)
    assert empty.rank == 0
    assert projector_of(empty, {"w": torch.randn(R, *SHAPES["w"])}) is None
    (runs, n), *_ = tasks_of(["linear"])
    grown = empty.with_task(stacked(runs), n, shapes_of(runs[0], (R,)))
    assert grown.gram({"w", "b"}).shape == (R, n, n)
    assert grown.gram({"other"}).shape == (R, n, n)
    assert (len(empty), len(grown)) == (0, n)


def test_a_store_is_not_changed_by_what_grows_from_it() -> None:
    (first, n), (second, m) = tasks_of(["linear", "linear"])
    store = Store().with_task(stacked(first), n, shapes_of(first[0], (R,)))
    K = store.gram({"w", "b"})
    grown = store.with_task(stacked(second), m, shapes_of(second[0], (R,)))
    assert grown.gram({"w", "b"}).shape == (R, n + m, n + m)
    assert torch.equal(store.gram({"w", "b"}), K)
    assert len(grown.pieces) == 1  # the rows were joined


def test_a_stack_of_another_number_of_runs_is_refused() -> None:
    (first, n), (second, m) = tasks_of(["linear", "linear"])
    store = Store().with_task(stacked(first), n, shapes_of(first[0], (R,)))
    with pytest.raises(ValueError, match=r"'w' has shape \(4, 5\), its stored gradients \(3, 4, 5\)"):
        store.with_task(second[0], m, shapes_of(second[0]))


def rows_of(pieces: list[Piece], name: str, n: int) -> Tensor:
    parts = [part for piece in pieces for part in piece.only({name})]
    G = torch.zeros(*parts[0].block.lead, n, torch.Size(SHAPES[name]).numel(), dtype=torch.float64)
    for part in parts:
        G[..., part.start : part.stop, :] += part.block.rows(0, part.block.n)
    return G


def chunks(piece: Piece, size: int) -> list[Piece]:
    starts = range(0, piece.block.n, size)
    return [Piece(piece.names, piece.block[i : min(i + size, piece.block.n)], piece.start + i) for i in starts]


def written_out(piece: Piece) -> list[Piece]:
    parts = zip(piece.names, piece.block.split(), strict=True)
    return [Piece((name,), Dense(part.rows(0, part.n)), piece.start) for name, part in parts]


DIFFERENT = {
    "the same": (lambda p: [p], {"Factored"}),
    "in chunks": (lambda p: chunks(p, 2), {"Factored"}),
    "dense": (written_out, {"Dense"}),
    "half dense": (lambda p: [*chunks(p, 3)[:1], *written_out(chunks(p, 3)[1])], {"Dense"}),
    "another T": (lambda p: [factored(p.names, p.block.n, p.start, T=2)], {"Dense"}),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_pieces_of_other_forms_are_stacked_dense(case: str) -> None:
    torch.manual_seed(0)
    change, kinds = DIFFERENT[case]
    same = [[dense("scale", 6, 4)] for _ in range(R)]
    runs = [[factored(("w", "b"), 6, 4), *same[0]], [factored(("w", "b"), 6, 4), *same[1]]]
    runs.append([*change(factored(("w", "b"), 6, 4)), *same[2]])
    pieces = stacked(runs)
    assert {type(p.block).__name__ for p in pieces if p.names != ("scale",)} == kinds
    assert {p.start for p in pieces} == {4}
    for name in ("w", "b", "scale"):
        expected = torch.stack([rows_of(run, name, 10) for run in runs])
        torch.testing.assert_close(rows_of(pieces, name, 10), expected)
    assert [p.names for p in append_pieces((), pieces)] == [p.names for p in pieces]


def test_stacked_keeps_the_precision_of_what_is_stored() -> None:
    one, other = factored(("w", "b"), 3, 0), factored(("w", "b"), 3, 0)
    runs = [[Piece(p.names, p.block.to(torch.device("cpu"), torch.float32))] for p in (one, other)]
    for case in (
        runs,
        [runs[0], [Piece(p.names, p.block.to(p.block.device, torch.float32)) for p in written_out(other)]],
    ):
        assert {t.dtype for piece in stacked(case) for t in piece.block.tensors().values()} == {torch.float32}


UNMATCHED = {
    "a parameter is missing": (lambda: [dense("scale", 4, 0)], "'w' .* run 1: none"),
    "fewer rows": (lambda: [dense("scale", 4, 0), factored(("w",), 3, 0)], "'w' .* run 0: rows 0 to 4 .*rows 0 to 3"),
    "another start": (lambda: [dense("scale", 4, 0), factored(("w",), 4, 2)], "'w' .* run 1: rows 2 to 6"),
    "another size": (
        lambda: [dense("scale", 4, 0), Piece(("w",), Dense(torch.zeros(4, 9).double()))],
        "'w' .* of 20 numbers; run 1: .* of 9 numbers",
    ),
}


@pytest.mark.parametrize("case", UNMATCHED)
def test_runs_that_do_not_match_are_refused_by_the_parameter(case: str) -> None:
    make, message = UNMATCHED[case]
    with pytest.raises(ValueError, match=message):
        stacked([[dense("scale", 4, 0), factored(("w",), 4, 0)], make()])
    with pytest.raises(ValueError, match="runs is empty"):
        stacked([])
