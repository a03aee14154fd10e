import numpy as np
import pytest
import torch

import naive_lab
from ogd import methods, training
from ogd.models import StackedMLP
from ogd.progress import Silent
from ogd.seeds import draw
from ogd.training.batches import chunks
from reference import flat
from small_lab import CASES, SCHEDULE, fit, make


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("method", "kind", "options"), CASES)
def test_the_loop_equals_a_naive_one(tiny, monkeypatch, name, method, kind, options, momentum):
    monkeypatch.setattr("ogd.methods.agem.BLOCK", 4)
    benchmark = make(name, tiny, tasks=3)
    schedule = {"epochs": 1, "batch_size": 7, "lr": 0.5 * (1 - momentum), "momentum": momentum}
    model, result = fit(benchmark, kind(**options), **schedule)
    for run in (0, 1):
        module, matrix = naive_lab.train(benchmark, naive_lab.METHODS[method](run, **options), (8, 6), **schedule)
        for ours, theirs in zip(model.module(run).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(result.accuracy[run], matrix)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("logits", ["true", "mean", "all"])
@pytest.mark.parametrize(("projection", "dtype", "tolerance"), [
    ("implicit", torch.float64, 1e-9),
    ("explicit", torch.float64, 1e-9),
    ("implicit", torch.float32, 1e-4),
    ("explicit", torch.float32, 1e-4),
])  # fmt: skip
def test_ogd_equals_algorithm_1_over_three_tasks(tiny, projection, dtype, tolerance, logits, momentum):
    benchmark = make("permuted", tiny, tasks=3)
    schedule = {"epochs": 1, "batch_size": 7, "lr": 0.1 * (1 - momentum), "momentum": momentum}
    model = StackedMLP((30, 8, 6, 10), runs=[1], dtype=dtype)
    method = methods.OGD(storage=30, logits=logits, projection=projection)
    training.train(benchmark, model, method, progress=False, **schedule)
    module, _ = naive_lab.train(benchmark, naive_lab.OGD(1, storage=30, logits=logits), (8, 6), **schedule)
    ours, theirs = flat(model.module(1).parameters()), flat(module.parameters())
    assert (ours - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_ogd_moves_only_where_stored_outputs_do_not_change(tiny, every):
    benchmark = make("rotated", tiny, tasks=2)
    task = benchmark.tasks[0]
    model = StackedMLP((30, 8, 6, 10), runs=2, dtype=torch.float64)
    method = methods.OGD(storage=20, projection="explicit", every=every)
    first = training.first_task(benchmark, model, training.Schedule(**SCHEDULE), Silent())
    training.train(benchmark, model, method, first=first, progress=False, **SCHEDULE)
    method.begin(model, 0)
    anchored = StackedMLP((30, 8, 6, 10), runs=2, dtype=torch.float64)
    with torch.no_grad():
        for w, value in zip(anchored.parameters(), first.finished[0], strict=True):
            w.copy_(value)
    method.end_task(anchored, task, None)
    moved = [((w - v).detach(), (b - c).detach()) for (w, b), (v, c) in zip(model.layers, anchored.layers, strict=True)]
    overlap = sum(block.overlap(pair) for block, pair in zip(method.blocks, moved, strict=True))
    length = sum(float((w**2).sum()) for pair in moved for w in pair) ** 0.5
    assert length > 0.1
    assert overlap.abs().max() < 1e-9


@pytest.mark.parametrize("storage", [10, 500])
def test_ogd_with_one_example_and_with_more_than_it_has_weights(tiny, storage):
    benchmark = make("rotated", tiny, tasks=3)
    for projection in ("implicit", "explicit"):
        _, result = fit(benchmark, methods.OGD(storage, "all", projection), lr=0.1)
        assert np.isfinite(result.accuracy).all()


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("_method", "kind", "options"), CASES)
def test_run_3_of_10_equals_run_3_alone(tiny, name, _method, kind, options):
    benchmark = make(name, tiny)
    many, all_runs = fit(benchmark, kind(**options), runs=10)
    alone, one_run = fit(benchmark, kind(**options), runs=[3])
    for a, b in zip(many.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a[3], b[0], rtol=1e-12, atol=1e-12)
    assert (all_runs.accuracy[3] == one_run.accuracy[0]).all()


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("_method", "kind", "options"), CASES)
def test_a_shared_first_task_changes_nothing(tiny, name, _method, kind, options):
    benchmark = make(name, tiny)
    plain, expected = fit(benchmark, kind(**options), curve_every=4)
    model = StackedMLP((30, 8, 6, 10), runs=2, dtype=torch.float64)
    first = training.first_task(benchmark, model, training.Schedule(**SCHEDULE, curve_every=4), Silent())
    shared, found = fit(benchmark, kind(**options), curve_every=4, first=first)
    assert all(a.equal(b) for a, b in zip(plain.parameters(), shared.parameters(), strict=True))
    assert (found.accuracy == expected.accuracy).all()
    np.testing.assert_array_equal(found.curve, expected.curve)
    assert found.curve_steps == expected.curve_steps


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (methods.AGEM, {"storage": 20}),
        (methods.AGEM, {"reference_batch": 3}),
        (methods.OGD, {"storage": 20}),
        (methods.OGD, {"logits": "mean"}),
        (methods.OGD, {"logits": "all"}),
        (methods.OGD, {"projection": "explicit", "every": 5}),
        (methods.EWC, {"ewc_lambda": 2.0}),
        (methods.EWC, {"fisher_examples": 20}),
        (methods.EWC, {"fisher_labels": "sampled"}),
    ],
)
def test_every_option_changes_something(tiny, kind, options):
    benchmark = make("rotated", tiny)
    assert not fit(benchmark, kind())[0].weights[0].equal(fit(benchmark, kind(**options))[0].weights[0])


def test_lambda_may_differ_from_run_to_run(tiny):
    benchmark = make("rotated", tiny)
    both, _ = fit(benchmark, methods.EWC(ewc_lambda=[1.0, 5.0]))
    for r, lam in enumerate((1.0, 5.0)):
        assert both.weights[0][r].equal(fit(benchmark, methods.EWC(ewc_lambda=lam))[0].weights[0][r])


def test_mtl_sees_each_task_in_equal_shares_and_no_example_twice(tiny):
    tasks = make("rotated", tiny, tasks=3).tasks
    index = draw(0, [0, 1], "x", 180, 60)
    assert all(len(set(row)) == 60 for row in index.tolist())
    seen = [batch.target.argmax(-1) for chunk in chunks(tasks, index, [None] * 3, 10, 7) for batch in chunk.split(7)]
    assert [y.shape[1] for y in seen] == [7] * 8 + [4]
    labels = torch.cat([task.train.y for task in tasks])
    assert torch.cat(seen, 1).equal(labels[index])


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: methods.OGD(logits="foo"), "logits: there is no 'foo'"),
        (lambda: methods.OGD(projection="Explicit"), "projection: there is no 'Explicit'; did you mean 'explicit'"),
        (lambda: methods.OGD(projection="explicit", every=0), "every: must be a whole number"),
        (lambda: methods.OGD(every=2), "every: 2 needs projection 'explicit'"),
        (lambda: methods.OGD(storage=1.5), "storage: must be a whole number"),
        (lambda: methods.AGEM(storage=0), "storage: must be a whole number"),
        (lambda: methods.AGEM(reference_batch=0), "reference_batch: must be"),
        (lambda: methods.EWC(-1.0), "ewc_lambda: must be a number of at least 0"),
        (lambda: methods.EWC(float("nan")), "ewc_lambda: must be a number of at least 0"),
        (lambda: methods.EWC(fisher_labels="foo"), "fisher_labels: there is no 'foo'"),
        (lambda: methods.EWC(fisher_examples=0), "fisher_examples: must be"),
    ],
)
def test_a_method_refuses_nonsense(make_one, message):
    with pytest.raises(ValueError, match=message):
        make_one()


def test_what_does_not_fit_the_runs_or_the_head(tiny):
    with pytest.raises(ValueError, match="ewc_lambda: 3 values do not fit 2 runs"):
        fit(make("rotated", tiny), methods.EWC([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="storage: 9 gradients cannot hold all 10 logits"):
        fit(make("rotated", tiny), methods.OGD(9, "all"))


@pytest.mark.parametrize("every", [1, 7])
def test_looking_changes_nothing(tiny, every):
    benchmark = make("rotated", tiny)
    for projection in ["explicit"] if every > 1 else ["explicit", "implicit"]:
        method = methods.OGD(20, projection=projection, every=every)
        plain, _ = fit(benchmark, method)
        watched, _ = fit(benchmark, method, curve_every=3)
        for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
