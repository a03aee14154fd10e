"""Which directions OGD keeps: leverage, principal components, a sketch; and a total that all tasks share."""

import pytest
import torch

import naive_lab
from ogd.lab import benchmarks, methods
from ogd.lab.experiments import resolve
from ogd.lab.methods.directions import leading, leverage, sketch, spectrum
from ogd.memory.blocks.stacking import combine_rows
from ogd.memory.projection.store import Store
from small_lab import fit, make, stack, weights

KINDS = ("drawn", "leverage", "pca", "sketch")


def gradients(n=9, p=20, runs=2, duplicates=0):
    G = torch.randn(runs, n, p, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.cat([G, G[:, :duplicates]], 1)


def outside(old, G):
    """What is left of G's rows outside the span of others."""
    return G - G @ torch.linalg.pinv(old) @ old if len(old) else G


@pytest.mark.parametrize("protected", [0, 4])
@pytest.mark.parametrize("duplicates", [0, 3])
def test_the_spectrum_is_that_of_what_is_new(protected, duplicates):
    G = gradients(duplicates=duplicates)
    lam, V = spectrum(G @ G.mT, protected, torch.float64)
    for r in range(2):
        rest = outside(G[r, :protected], G[r, protected:])
        sigma = torch.linalg.svdvals(rest)
        torch.testing.assert_close(lam[r].sqrt(), torch.where(sigma > 1e-9, sigma, 0), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(V[r] @ lam[r].diag() @ V[r].mT, rest @ rest.mT, rtol=1e-9, atol=1e-9)
    assert int((lam > 0).sum()) == 2 * (9 - protected)


def test_nothing_is_new_in_candidates_that_are_protected():
    G = gradients()
    lam, V = spectrum(torch.cat([G, G], 1) @ torch.cat([G, G], 1).mT, 9, torch.float64)
    assert not lam.any()
    assert not leverage(lam, V, 3).any()
    assert not leading(lam, V, 3).any()


@pytest.mark.parametrize("k", [1, 4, 9, 30])
@pytest.mark.parametrize("duplicates", [0, 3])
def test_leverage_is_its_formula(k, duplicates):
    G = gradients(duplicates=duplicates)
    found = leverage(*spectrum(G @ G.mT, 0, torch.float64), k)
    for r in range(2):
        torch.testing.assert_close(found[r], naive_lab.OGD.leverage(G[r], k), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found[:, :duplicates], found[:, 9:])
    if k >= 9:
        torch.testing.assert_close(found.sum(1), torch.full((2,), 9.0, dtype=torch.float64))  # the rank


@pytest.mark.parametrize("k", [1, 4, 12, 30])
def test_leading_directions_are_right_singular_vectors_and_no_more_than_the_rank(k):
    G = gradients(duplicates=3)
    made = leading(*spectrum(G @ G.mT, 0, torch.float64), k) @ G
    assert made.shape[1] == min(k, 12)
    for r in range(2):
        Vh = torch.linalg.svd(G[r])[2][: min(k, 9)]
        torch.testing.assert_close(made[r].mT @ made[r], Vh.mT @ Vh, rtol=1e-8, atol=1e-8)
        assert not made[r, 9:].any()


@pytest.mark.parametrize("k", [1, 3, 6, 40])
def test_a_sketch_loses_no_more_than_it_says(k):
    """0 ≤ |G u|² − |B u|² ≤ Σ σ²_{k+1} for every u, over three tasks, and nothing where it has room."""
    tasks, B, lost = gradients(runs=3), torch.empty(0, 20, dtype=torch.float64), 0.0
    for new in tasks:
        G = torch.cat([B, new])
        lam, V = spectrum(G @ G.mT, 0, torch.float64)
        lost += float(lam[k]) if k < len(lam) else 0.0
        B = sketch(lam, V, k) @ G
        torch.testing.assert_close(B.mT @ B, (S := naive_lab.OGD.sketch(G, k)).mT @ S, rtol=1e-8, atol=1e-8)
        assert len(B) == min(k, len(G))
    every = tasks.flatten(0, 1)
    difference = torch.linalg.eigvalsh(every.mT @ every - B.mT @ B)
    assert difference.min() > -1e-9
    assert difference.max() < lost + 1e-9
    assert float(every.square().sum()) > lost
    assert (lost == 0) == (k == 40)


@pytest.mark.parametrize("kind", ["mlp", "weights", "cnn"])
def test_combinations_are_written_out_parameter_by_parameter(tiny, monkeypatch, kind):
    monkeypatch.setattr("ogd.memory.blocks.stacking.CHUNK", 200)
    model, x = stack(kind), make("rotated", tiny).tasks[0].train.x[:7]
    batch = methods.Batch(x.expand(2, *x.shape), torch.eye(10).repeat(2, 1, 1)[:, :7])
    pieces, rows = model.output_gradients(batch, "all", None)
    C = torch.randn(2, 3, rows, dtype=torch.float64)
    expected = {name: torch.zeros(2, 3, w[0].numel(), dtype=torch.float64) for name, w in model.params.items()}
    for piece in pieces:
        for i in range(3):
            for name, part in zip(piece.names, piece.block.combine(C[:, i, piece.start : piece.stop]), strict=True):
                expected[name][:, i] += part.reshape(2, -1)
    found = {piece.names[0]: piece.block.G for piece in combine_rows(pieces, C, torch.float64)}
    assert {piece.names for piece in Store(pieces).pieces} != {(name,) for name in found} or kind != "mlp"
    for name, rows in expected.items():
        torch.testing.assert_close(found[name], rows, rtol=1e-10, atol=1e-10)


def repeated(dataset, n, times=1):
    """Three tasks of n examples, each of them there several times."""

    def of(task):
        x, y = (torch.cat([part[:n]] * times) for part in (task.train.x, task.train.y))
        return (x, y), (task.test.x, task.test.y)

    return benchmarks.from_datasets([of(task) for task in make("rotated", dataset, tasks=3).tasks])


@pytest.mark.parametrize(("n", "outputs"), [(60, "true"), (10, "all")])
def test_with_room_for_all_every_choice_protects_the_same(tiny, n, outputs):
    """A task has fewer gradients than may be kept."""
    first, *others = (
        fit(repeated(tiny, n), methods.OGD(200, outputs, "explicit", directions=kind), lr=0.1)[0] for kind in KINDS
    )
    for other in others:
        for a, b in zip(weights(first), weights(other), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "per_task"), [("leverage", 7), ("pca", 30), ("sketch", 30)])
def test_examples_that_are_there_twice(tiny, kind, per_task):
    """K has half its rank: 40 candidates have 20 directions, fewer than may be kept."""
    options = {"per_task": per_task, "directions": kind, "candidates": 40}
    benchmark, schedule = repeated(tiny, 20, times=2), {"epochs": 1, "batch_size": 7, "lr": 0.1}
    method = methods.OGD(**options)
    trained, _ = fit(benchmark, method, **schedule)
    module = stack().module(1)
    naive_lab.train(benchmark, naive_lab.OGD(1, **options), module, **schedule)
    for ours, theirs in zip(trained.module(1).parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_every_choice_differs_and_so_do_the_candidates(tiny):
    options = [{"directions": kind} for kind in KINDS] + [{"directions": "pca", "candidates": 30}]
    found = [fit(make("rotated", tiny), methods.OGD(5, **given))[0].weights[0] for given in options]
    assert not any(a.equal(b) for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize("kind", KINDS)
def test_one_task_is_as_without_a_method(tiny, kind):
    method = methods.OGD(5, directions=kind)
    model, _ = fit(make("rotated", tiny, tasks=1), method)
    assert model.weights[0].equal(fit(make("rotated", tiny, tasks=1))[0].weights[0])
    assert len(method.store) == 5


class Watched(methods.OGD):
    def begin(self, model, seed):
        super().begin(model, seed)
        self.seen = []

    def end_task(self, finished):
        super().end_task(finished)
        self.seen.append((self.store.tasks, self.store.nbytes, self.store.gram(finished.model.params)))


@pytest.mark.parametrize("kind", ["drawn", "leverage", "pca"])
def test_a_total_is_shared_equally_and_the_first_of_each_stay(tiny, kind):
    method = Watched(in_total=11, directions=kind)
    fit(make("rotated", tiny, tasks=3), method)
    assert [tasks for tasks, *_ in method.seen] == [(11,), (6, 5), (4, 4, 3)]
    (_, _, one), (_, _, two), (_, _, three) = method.seen
    assert two[:, :6, :6].equal(one[:, :6, :6])
    assert three[:, 4:8, 4:8].equal(two[:, 6:10, 6:10])


def test_a_total_of_examples_is_kept_whole(tiny):
    method = Watched(in_total=60, outputs="all")
    fit(make("split", tiny, tasks=3), method)  # 4, 3 and 3 classes; shares of 60, 30 and 20
    assert [tasks for tasks, *_ in method.seen] == [(60,), (28, 30), (20, 18, 18)]
    method = methods.OGD(in_total=60, outputs="all", refresh=3)
    fit(make("split", tiny, tasks=3), method)
    assert [batch.x.shape[1] for batch, _ in method.batches] == [5, 6, 6]


def test_a_sketch_is_of_one_size_however_many_tasks(tiny):
    method = Watched(in_total=11, directions="sketch")
    fit(make("rotated", tiny, tasks=3), method)
    parameters = sum(w[0].numel() for w in weights(stack()))
    assert [seen[:2] for seen in method.seen] == [((11,), 2 * 11 * parameters * 8)] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": "best"}, "directions: there is no 'best'"),
        ({"candidates": 0}, "candidates: must be at least 1"),
        ({"directions": "pca", "projection": "implicit"}, "directions pca needs 'explicit'|directions: 'pca' needs"),
        ({"directions": "leverage", "refresh": 5}, "refresh: renews the gradients of drawn examples"),
    ],
)
def test_what_does_not_go_together(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        methods.OGD(**options)
    with pytest.raises(ValueError, match=message):
        resolve("rotated", "ogd", tiny, **options)


def test_what_is_refused_before_training(tiny):
    for options, message in (
        ({"candidates": 20}, "candidates: are for directions 'leverage', 'pca' and 'sketch'"),
        ({"in_total": 20, "per_task": 5}, "in_total: stands in place of per_task"),
        ({"in_total": 4}, "in_total: must be at least 5, an example per task, not 4"),
        ({"in_total": 49, "outputs": "all"}, "in_total: must be at least 50, the logits of an example per task"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve("rotated", "ogd", tiny, **options)
    with pytest.raises(ValueError, match="in_total: 7 gradients cannot hold all 10 logits of one example"):
        fit(make("rotated", tiny, tasks=2), methods.OGD(in_total=15, outputs="all"))
    for directions, projection in (("drawn", "implicit"), ("leverage", "implicit"), ("pca", "explicit")):
        assert resolve("rotated", "ogd", tiny, directions=directions).options["projection"] == projection
